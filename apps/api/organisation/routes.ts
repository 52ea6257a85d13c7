import type { Route } from '#libs/http/route.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { resourceRoutes } from '#libs/records/resource-routes.ts';
import { tagsOf } from '#libs/records/resource-texts.ts';
import { explainConfig } from './explain-config.ts';

export const organisationTags: Readonly<Record<string, string>> = {
  Sessions: 'The identity behind a request, and the sessions of browsers.',
  Members: 'The users of a workspace and their roles in it.',
  ...tagsOf(resourceKinds),
};

type Deps = { resources: Parameters<typeof resourceRoutes>[1] } & Parameters<typeof explainConfig>[0];

/** Workspaces, people, keys, configs and all other records. */
export const organisationRoutes = (deps: Deps): Route[] => [
  ...resourceKinds.flatMap((kind) => resourceRoutes(kind, deps.resources)),
  explainConfig(deps),
];
