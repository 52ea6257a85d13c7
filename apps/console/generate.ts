import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { toOpenApi } from '#libs/http/openapi.ts';
import { createRoutes, type RouteDeps } from '../api/routes.ts';
import { typesOf } from './openapi-types.ts';

// Writes the types of the API's client, generated/api.ts, from the OpenAPI document of the route table. Run by `npm run
// build:console` and `npm run check`, so that the console cannot call what the API does not have.

/** Stands for everything that routes are made with: handlers are not called here. */
const nothing: object = new Proxy(() => nothing, {
  get: (_target, name) => (name === Symbol.iterator ? undefined : nothing),
});

const routes = createRoutes(nothing as RouteDeps);
const document = toOpenApi(routes, { title: 'Sluice', description: '', baseUrl: '' });
const folder = path.join(import.meta.dirname, 'generated');
mkdirSync(folder, { recursive: true });
writeFileSync(path.join(folder, 'api.ts'), typesOf(document));
