import { expect, test } from 'vitest';
import type { Target } from '#libs/calls/call.ts';
import type { Calls } from '#libs/calls/calls.ts';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { listModels, type ModelDeps } from './list-models.ts';
import { readCredentials, noDefaults } from './requested.ts';

/** The warnings about a list with the models of `away`, whose call fails like this, and of `well`. */
async function warningsOf(failure: Error): Promise<Record<string, unknown>[]> {
  const { logger, lines } = createTestLogger();
  const calls = {
    listModels: async ({ label }: Target) => {
      if (label === 'away') throw failure;
      const data = [{ id: 'one', object: 'model', created: 1, owned_by: 'well' }];
      const body = Buffer.from(JSON.stringify({ object: 'list', data }));
      return { kind: 'json', status: 200, body };
    },
  } as unknown as Calls;
  const deps: ModelDeps = {
    calls,
    storedObjects: { withoutForeign: async (_place, models) => [...models] },
    logger,
    virtualKeySlugs: async () => ['away', 'well'],
    routing: {
      targetOf: async ({ model }) => ({
        target: { label: String(model).slice(1).split('/')[0] } as Target,
        model: null,
      }),
    },
  };
  const wanted = { workspaceId: 'ws_1', credentials: readCredentials({}), defaults: noDefaults };
  expect(await listModels(deps, wanted, new AbortController().signal)).toMatchObject([{ id: '@well/one' }]);
  return lines.filter(({ msg }) => msg === 'a provider did not return its models');
}

test('a provider that is away costs the log one short line, and a bug of ours keeps its stack', async () => {
  const away = new GatewayError('provider_failed', 'upstream_unreachable', 'away could not be reached (ECONNREFUSED).');
  const lines = await warningsOf(away);
  expect(lines).toMatchObject([{ code: away.code, message: away.message }]);
  expect(JSON.stringify(lines)).not.toContain('list-models');
  expect(JSON.stringify(await warningsOf(new TypeError('not a function')))).toContain('list-models');
});
