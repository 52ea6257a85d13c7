import { createRootRoute, createRoute, createRouter, lazyRouteComponent, Link } from '@tanstack/react-router';
import { Frame } from './frame.tsx';
import { Empty, ErrorNote, Loading } from './parts/basics.tsx';
import { serverPath } from './api/server-url.ts';

const root = createRootRoute({
  component: Frame,
  notFoundComponent: () => (
    <Empty title="Page not found">
      <Link to="/">Go to the overview</Link>
    </Empty>
  ),
  errorComponent: ({ error }) => <ErrorNote error={error} />,
});

/**
 * Filters are part of the address, so that a page can be shared in its current state. They are only texts; each page reads
 * those that it knows.
 */
const texts = (search: Record<string, unknown>): Record<string, string> =>
  Object.fromEntries(
    Object.entries(search).flatMap(([name, value]) =>
      typeof value === 'string' || typeof value === 'number' ? [[name, String(value)]] : [],
    ),
  );

const page = <Path extends string>(path: Path, component: ReturnType<typeof lazyRouteComponent>) =>
  createRoute({ getParentRoute: () => root, path, component, validateSearch: texts });

const routeTree = root.addChildren([
  page(
    '/',
    lazyRouteComponent(() => import('./pages/overview.tsx'), 'Overview'),
  ),
  page(
    '/batches',
    lazyRouteComponent(() => import('./pages/batches.tsx'), 'Batches'),
  ),
  page(
    '/batches/new',
    lazyRouteComponent(() => import('./pages/new-batch.tsx'), 'NewBatch'),
  ),
  page(
    '/batches/$id',
    lazyRouteComponent(() => import('./pages/batch.tsx'), 'BatchPage'),
  ),
  page(
    '/replays',
    lazyRouteComponent(() => import('./pages/replays.tsx'), 'Replays'),
  ),
  page(
    '/requests',
    lazyRouteComponent(() => import('./pages/requests.tsx'), 'Requests'),
  ),
  page(
    '/requests/$id',
    lazyRouteComponent(() => import('./pages/request.tsx'), 'RequestPage'),
  ),
  page(
    '/events',
    lazyRouteComponent(() => import('./pages/events.tsx'), 'Events'),
  ),
  page(
    '/costs',
    lazyRouteComponent(() => import('./pages/costs.tsx'), 'Costs'),
  ),
  page(
    '/agent-sessions',
    lazyRouteComponent(() => import('./pages/agent-sessions.tsx'), 'AgentSessions'),
  ),
  page(
    '/prompts',
    lazyRouteComponent(() => import('./pages/prompts.tsx'), 'Prompts'),
  ),
  page(
    '/prompts/$slug',
    lazyRouteComponent(() => import('./pages/prompt.tsx'), 'PromptPage'),
  ),
  page(
    '/models',
    lazyRouteComponent(() => import('./pages/models.tsx'), 'Models'),
  ),
  page(
    '/configs',
    lazyRouteComponent(() => import('./pages/configs.tsx'), 'Configs'),
  ),
  page(
    '/guardrails',
    lazyRouteComponent(() => import('./pages/guardrails.tsx'), 'Guardrails'),
  ),
  page(
    '/keys',
    lazyRouteComponent(() => import('./pages/keys.tsx'), 'Keys'),
  ),
  page(
    '/webhooks',
    lazyRouteComponent(() => import('./pages/webhooks.tsx'), 'Webhooks'),
  ),
  page(
    '/people',
    lazyRouteComponent(() => import('./pages/people.tsx'), 'People'),
  ),
  page(
    '/sessions',
    lazyRouteComponent(() => import('./pages/sessions.tsx'), 'OwnSessions'),
  ),
  page(
    '/system',
    lazyRouteComponent(() => import('./pages/system.tsx'), 'System'),
  ),
  page(
    '/playground',
    lazyRouteComponent(() => import('./pages/playground.tsx'), 'Playground'),
  ),
]);

export const router = createRouter({
  routeTree,
  basepath: `${serverPath}/console`,
  defaultPendingComponent: Loading,
  defaultPreload: 'intent',
});

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router;
  }
}
