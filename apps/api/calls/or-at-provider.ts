import { credentialHeaders, readCredentials } from '#libs/credentials/requested.ts';
import type { Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { relayHandler, type RelayDeps } from './relay-call.ts';

/** A sentence for the descriptions of these routes. */
export const atProvider =
  'With a virtual key in the headers, an ID that Sluice does not know is looked up at the provider.';

/**
 * A route of our files, batches and fine-tuning jobs that also serves those at a provider, if the headers name one: an
 * ID that is not found here is looked up there. Our own records always take precedence, and an ID that can only be one
 * of ours is never sent anywhere, whichever workspace it belongs to. (OpenAI's batch IDs have the form of ours.)
 */
export function orAtProvider(deps: RelayDeps, route: Route): Route {
  const { method, path, request: accepted = {}, handler } = route;
  if (method === 'PUT') throw new Error(`${path}: providers have no operations with PUT`);
  const relay = relayHandler(deps, { area: 'stored_objects', method, path });
  const [, parameter = ''] = /:(\w+)/.exec(path) ?? [];
  return {
    ...route,
    request: { ...accepted, headers: [...(accepted.headers ?? []), 'metadata', ...credentialHeaders] },
    handler: async (request, response, next) => {
      const { virtualKey, provider, config } = readCredentials(request.headers);
      const namesProvider = virtualKey !== null || provider !== null || config !== null;
      const mayBeThere = namesProvider && !ours.test(String(request.params[parameter]));
      try {
        await handler(request, response, next);
      } catch (error) {
        const isUnknown = error instanceof GatewayError && error.kind === 'not_found' && !response.headersSent;
        if (!mayBeThere || !isUnknown) throw error;
        await relay(request, response);
      }
    },
  };
}

/** The IDs that `newId` makes and no provider does. */
const ours = /^(?:file|ftjob)-[\da-f]{32}$/;
