import { operationPaths, type Operation } from '#libs/providers/provider.ts';
import { findTranslation } from '#libs/providers/dialects.ts';
import { findProvider } from '#libs/providers/registry.ts';

const byEndpoint: ReadonlyMap<string, Operation> = new Map(
  Object.entries(operationPaths).map(([operation, path]) => [`/v1${path}`, operation as Operation]),
);

/** The operation that the lines of a batch for this endpoint call. */
export const operationOf = (endpoint: string): Operation | undefined => byEndpoint.get(endpoint);

/** Whether no line for this endpoint can be called at that provider. */
export function lacksEndpoint(providerId: string, endpoint: string): boolean {
  const operation = operationOf(endpoint);
  const provider = findProvider(providerId);
  return operation !== undefined && provider !== undefined && findTranslation(provider, operation, '') === undefined;
}
