import type { Route } from '#libs/http/route.ts';
import { consoleRoutes } from './console-routes.ts';
import { docsRoutes } from './docs-routes.ts';
import { listCircuits } from './list-circuits.ts';
import { systemRoutes } from './system-routes.ts';

export const serverTags = {
  Administration: 'The state of this installation.',
  Operations: 'Health, metrics and this document.',
};

export const serverRoutes = (
  deps: Parameters<typeof listCircuits>[0] & Parameters<typeof systemRoutes>[0],
): Route[] => [listCircuits(deps), ...systemRoutes(deps)];

/** Pages and their files, which need no key. */
export const pageRoutes = (): Route[] => [...docsRoutes(), ...consoleRoutes()];
