import { isUtf8 } from 'node:buffer';
import { duplicateBreach } from '#libs/contracts/calls/body-rules.ts';
import { describeBreach } from '#libs/contracts/calls/describe-issue.ts';
import { countMembers, findDuplicateMember } from '#libs/kernel/json/duplicate-members.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Member } from '#libs/kernel/json/json-members.ts';
import { JsonOutline } from '#libs/kernel/json/json-outline.ts';
import { measureJson } from '#libs/kernel/json/measure-json.ts';
import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import { jsonErrorOffset } from './json-error-offset.ts';

/** Limits for the text of any body. */
export type JsonTextLimits = {
  /** Nesting of objects and arrays. */
  depthMax: number;
  /** Members of all objects together. A million tiny members cost far more memory than their bytes. */
  membersMax: number;
  /** The work of parsing and checking a body; see `measureJson`. */
  workMax: number;
  /** Bodies with more work are not parsed here. Less than `workMax`. Absent: all are. */
  quickWorkMax?: number;
};

type BodyLease = Pick<MemoryLease, 'usedBytes' | 'leaseBytesMax' | 'charge' | 'give'>;

/**
 * Finds what `parseJsonBytes` finds, and charges the same, without parsing long strings: in the value of the outline
 * they are placeholders. Returns null and charges nothing if the body exceeds a limit, is malformed, or is unusual; only
 * `parseJsonBytes` can tell.
 */
export function outlineJsonBytes(
  bytes: Buffer,
  { quickWorkMax, ...limits }: JsonTextLimits,
  lease: BodyLease,
): { value: unknown; members: readonly Member[] } | null {
  if (!isUtf8(bytes)) return null;
  const outline = new JsonOutline(bytes);
  const workMax = quickWorkMax ?? limits.workMax;
  const { excess, members, textBytes, valueBytes } = measureJson(bytes, { ...limits, workMax }, outline);
  if (excess !== null || !outline.isComplete) return null;
  if (lease.usedBytes + textBytes + valueBytes > lease.leaseBytesMax) return null;
  let value: unknown;
  try {
    value = JSON.parse(outline.text());
  } catch {
    return null;
  }
  if (countMembers(value) < members) return null;
  lease.charge(valueBytes);
  return { value, members: outline.members() };
}

/**
 * Parses the bytes of a body and charges the value to the lease. Returns undefined, which no JSON has as its value, for
 * more than `quickWorkMax` of work. Throws GatewayError: invalid_request for bytes that
 * are not UTF-8 or not JSON (with the position), are nested too deeply, have too many members or values, or a duplicate
 * member; payload_too_large for a value that exceeds any lease; and the errors of `charge`.
 */
export function parseJsonBytes(bytes: Buffer, limits: JsonTextLimits, lease: BodyLease | null): unknown {
  if (!isUtf8(bytes)) {
    throw new GatewayError('invalid_request', 'invalid_utf8', 'The request body is not valid UTF-8.');
  }
  const { quickWorkMax } = limits;
  const measured = measureJson(bytes, quickWorkMax === undefined ? limits : { ...limits, workMax: quickWorkMax });
  const { excess, members, textBytes, valueBytes } = measured;
  if (excess === 'depth') {
    const message = `The request body is nested more than ${limits.depthMax} levels deep.`;
    throw new GatewayError('invalid_request', 'json_too_deep', message);
  }
  if (excess === 'members') {
    const message = `The objects of the request body have more than ${limits.membersMax} members.`;
    throw new GatewayError('invalid_request', 'json_too_many_members', message);
  }
  if (excess === 'work' && quickWorkMax !== undefined) return undefined;
  if (excess === 'work') {
    const message =
      'The request body has too many values. At most about 300,000 numbers, 45,000 members or 16,000 messages ' +
      'are accepted. Send fewer values, or split the request.';
    throw new GatewayError('invalid_request', 'json_too_complex', message);
  }
  if (lease !== null) {
    const wholeBytes = lease.usedBytes + textBytes + valueBytes;
    if (wholeBytes > lease.leaseBytesMax) throw tooComplex(wholeBytes, lease.leaseBytesMax);
    lease.charge(textBytes + valueBytes);
  }
  let value: unknown;
  try {
    value = JSON.parse(bytes.toString('utf8'));
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    throw malformed(bytes);
  } finally {
    lease?.give(textBytes);
  }
  if (countMembers(value) < members) throw duplicated(bytes);
  return value;
}

function duplicated(bytes: Buffer): GatewayError {
  const { code, message, param } = describeBreach(duplicateBreach(findDuplicateMember(bytes) ?? []));
  return new GatewayError('invalid_request', code, message, { param });
}

function tooComplex(wholeBytes: number, bytesMax: number): GatewayError {
  const message = `The request body has too many values. It would take ${wholeBytes} bytes of memory, and the maximum for one request is ${bytesMax}. Send fewer values, or split the request.`;
  return new GatewayError('payload_too_large', 'request_too_complex', message);
}

const placedBytesMax = 262_144;

const byteOrderMark = Buffer.from('\uFEFF');

// V8's own message quotes the body and often has no position.
function malformed(bytes: Buffer): GatewayError {
  if (bytes.subarray(0, byteOrderMark.length).equals(byteOrderMark)) {
    const message = 'The request body begins with a byte order mark. Send it as UTF-8 without BOM.';
    return new GatewayError('invalid_request', 'invalid_json', message);
  }
  // Locating the error takes a hundred times as long as parsing the text.
  if (bytes.length > placedBytesMax) {
    const message = `The request body is not valid JSON. It is too long (${bytes.length} bytes) to locate the error.`;
    return new GatewayError('invalid_request', 'invalid_json', message);
  }
  const offset = jsonErrorOffset(bytes);
  const before = bytes.subarray(0, offset);
  const line = before.toString('latin1').split('\n').length;
  const column = before.subarray(before.lastIndexOf(0x0a) + 1).toString('utf8').length + 1;
  const what = offset >= bytes.length ? 'it ends too early' : 'an unexpected character';
  const message = `The request body is not valid JSON: ${what} at byte ${offset} (line ${line}, column ${column}).`;
  return new GatewayError('invalid_request', 'invalid_json', message);
}
