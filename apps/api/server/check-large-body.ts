import { headNames, type BodyHead, type LargeBodyFindings, type LargeBodyTask } from '#libs/http/bodies/large-body.ts';
import { outlineJsonBytes, parseJsonBytes } from '#libs/http/bodies/parse-json-bytes.ts';
import type { Member } from '#libs/kernel/json/json-members.ts';
import { checkBody, createBodyCheck, type ContractName } from '#libs/validation/lines/check-body.ts';

/**
 * Does for a large body what `readJsonBody` does for a small one, and checks its contract. Returns null for a body with
 * more than `quickWorkMax` of work. Throws the errors of both.
 *
 * The contract is checked with the outline of the body. It only limits strings that are shorter than the placeholders,
 * so a body whose outline is good is good. If the outline is not, the whole body is parsed, for the exact error.
 */
export function checkLargeBody(bytes: Buffer, task: Omit<LargeBodyTask, 'pieces'>): LargeBodyFindings | null {
  const { limits } = task;
  const contract = task.contract as ContractName | null;
  const outlined = createLease(task);
  const outline = outlineJsonBytes(bytes, limits, outlined);
  if (outline !== null && (contract === null || checkBody(contract, outline.value) === null)) {
    const members = isObject(outline.value) ? outline.members : null;
    return { bytes, head: members && readHead(bytes, members), members, usedBytes: outlined.usedBytes };
  }
  const parsed = createLease(task);
  const value = parseJsonBytes(bytes, limits, parsed);
  if (value === undefined) return null;
  if (contract !== null) createBodyCheck(contract)(value);
  const head = isObject(value) ? pickHead(value) : null;
  return { bytes, head, members: null, usedBytes: parsed.usedBytes };
}

const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

const pickHead = (value: Readonly<Record<string, unknown>>): BodyHead =>
  Object.fromEntries(headNames.filter((name) => Object.hasOwn(value, name)).map((name) => [name, value[name]]));

const isHeadName: ReadonlySet<string> = new Set(headNames);

/** From the bytes, because a long name of a model is a placeholder in the outline. */
const readHead = (bytes: Buffer, members: readonly Member[]): BodyHead =>
  Object.fromEntries(
    members
      .filter(({ name }) => isHeadName.has(name))
      .map(({ name, valueStart, valueEnd }) => [name, JSON.parse(bytes.toString('utf8', valueStart, valueEnd))]),
  );

/** Counts memory that is charged afterwards. The number of threads bounds the memory that is used meanwhile. */
function createLease({ usedBytes, leaseBytesMax }: Omit<LargeBodyTask, 'pieces'>) {
  const lease = {
    usedBytes,
    leaseBytesMax,
    charge: (more: number): void => void (lease.usedBytes += more),
    give: (less: number): void => void (lease.usedBytes -= less),
  };
  return lease;
}
