import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { isPublicName, type PublicNames } from '#libs/contracts/configs/public-models.ts';
import type { BatchEndpoint } from '#libs/contracts/batches/batches.ts';
import { countTransferred } from '#libs/kernel/heap-growth.ts';
import type { ValidationInput } from '#libs/validation/validation.ts';
import type { BatchRow } from './batch-model.ts';
import { lacksEndpoint } from './endpoint-operation.ts';

/** The destination of a batch's lines, as far as it is known before they are read. */
export type LineDestination = {
  endpoint: string;
  hasConfig: boolean;
  /** Whether a line can leave its destination to the batch. */
  hasTarget: boolean;
  /** The provider of the batch's own target; null: it has no target, or a config. */
  provider: string | null;
  /** The model for all lines, which replaces the model of each line. */
  model: string | null;
};

export type VirtualKey = { id: string; slug: string; provider: string };

/**
 * Returns what lines are allowed to name. `keys` are those of the workspace; none for a batch with a config. `publicNames`:
 * the public models that its caller can use, for a batch without a target.
 */
export function makeLineRules(
  destination: LineDestination,
  keys: readonly VirtualKey[],
  publicNames?: PublicNames,
): Pick<ValidationInput, 'endpoint' | 'hasDefaultTarget' | 'virtualKeys' | 'publicNames' | 'unable'> {
  // Not if the batch has a config or a model for all lines.
  const namesKeys = !destination.hasConfig && destination.model === null;
  const virtualKeys = namesKeys ? new Set(keys.map(({ slug }) => slug)) : null;
  const { hasTarget, model } = destination;
  const isPublic = publicNames !== undefined && model !== null && isPublicName(publicNames, model);
  const endpoint = destination.endpoint as BatchEndpoint;
  return {
    endpoint,
    hasDefaultTarget: hasTarget || isPublic,
    virtualKeys,
    publicNames,
    unable: providersWithout(destination, keys, namesKeys),
  };
}

/**
 * The providers without the batch's endpoint, as far as they are known before the lines are read. Providers in a config
 * are not included.
 */
function providersWithout(
  { endpoint, provider, model }: LineDestination,
  keys: readonly VirtualKey[],
  namesKeys: boolean,
): Map<string | null, string> {
  // A model for all lines can name another virtual key. It is checked when the first line is called.
  if (model?.startsWith('@') === true) return new Map();
  const targets: [string | null, string][] = namesKeys ? keys.map((key) => [key.slug, key.provider]) : [];
  if (provider !== null) targets.push([null, provider]);
  return new Map(targets.filter(([, id]) => lacksEndpoint(id, endpoint)));
}

/** Whether an invalid request fails only its own line, when it is called. */
export const failsLinesAlone = ({ gateway_options: options }: Pick<BatchRow, 'gateway_options'>): boolean =>
  options['on_invalid_line'] === 'fail_line';

/** The bytes of an input file. */
export async function* readInput(blobs: BlobStore, blob: string): AsyncGenerator<Buffer> {
  for await (const chunk of (await blobs.read(blob)) as AsyncIterable<Buffer>) {
    countTransferred(chunk.length);
    yield chunk;
  }
}
