import { appendFileSync, mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { z } from 'zod';
import { scopes } from '#libs/contracts/people/api-keys.ts';
import { ConfigNode } from '#libs/contracts/configs/config.ts';
import { webhookEventTypes } from '#libs/contracts/webhooks.ts';
import { guardrailChecks } from '#libs/contracts/configs/guardrail-checks.ts';
import { toOpenApi } from '#libs/http/openapi.ts';
import { providers } from '#libs/providers/provider-list.ts';
import { createRoutes, type RouteDeps } from '../api/routes.ts';
import { typesOf } from './openapi-types.ts';

// Writes the types of the API's client, generated/api.ts, from the OpenAPI document of the route table, and the names that
// forms offer, generated/names.ts, with the parameters of guardrail checks, generated/checks.ts, and the schema of a config for
// its editor, generated/config-schema.ts. Run by build.ts before each
// build and by `npm run check`, so that the console cannot call what the API does not have.

/** Stands for everything that routes are made with: handlers are not called here. */
const nothing: object = new Proxy(() => nothing, {
  get: (_target, name) => (name === Symbol.iterator ? undefined : nothing),
});

const routes = createRoutes(nothing as RouteDeps);
const document = toOpenApi(routes, { title: 'Sluice', description: '', baseUrl: '' });
const folder = path.join(import.meta.dirname, 'generated');
mkdirSync(folder, { recursive: true });
writeFileSync(path.join(folder, 'api.ts'), typesOf(document));
const names = { providerNames: providers.map(({ id }) => id), scopeNames: scopes };
writeFileSync(
  path.join(folder, 'names.ts'),
  Object.entries(names)
    .map(([name, value]) => `export const ${name}: readonly string[] = ${JSON.stringify(value)};\n`)
    .join(''),
);

appendFileSync(
  path.join(folder, 'names.ts'),
  `export const webhookEventTypes = ${JSON.stringify(webhookEventTypes)} as const;\n`,
);

// For completion; of whatever a check makes of a value, what goes in is what a document has.
const configSchema = z.toJSONSchema(ConfigNode, { io: 'input', unrepresentable: 'any', reused: 'ref' });
writeFileSync(
  path.join(folder, 'config-schema.ts'),
  `import type { JsonSchema } from '../src/parts/complete-json.ts';\n\n` +
    `export const configSchema = ${JSON.stringify(configSchema)} as unknown as JsonSchema;\n`,
);

const checks = Object.fromEntries(
  Object.entries(guardrailChecks).map(([name, schema]) => {
    const { properties = {}, required = [] } = z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' });
    return [name, { properties, required }];
  }),
);
const checkType = `export type Parameter = {
  type?: string;
  enum?: readonly unknown[];
  items?: { enum?: readonly unknown[]; [other: string]: unknown };
  default?: unknown;
  [other: string]: unknown;
};
export type Check = { properties: Readonly<Record<string, Parameter>>; required: readonly string[] };
`;
writeFileSync(
  path.join(folder, 'checks.ts'),
  `${checkType}export const checks: Readonly<Record<string, Check>> = ${JSON.stringify(checks)};\n`,
);
