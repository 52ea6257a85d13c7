import { GatewayError } from '#libs/kernel/errors.ts';
import { version } from '#libs/kernel/version.ts';
import type { HttpMetrics } from '#libs/http/metrics.ts';
import type { OpenApiDocument } from '#libs/http/openapi.ts';
import type { Route } from '#libs/http/route.ts';

/** Each check by name, with `ok` or the problem. Only the required ones decide; the others are informative. */
export type Readiness = { required: Record<string, string>; informative: Record<string, string> };

type Deps = {
  checkReadiness: () => Promise<Readiness>;
  /** Absent if metrics have a separate port. In that case, /metrics is 404 here, and readiness has no details. */
  metrics: Pick<HttpMetrics, 'renderMetrics'> | undefined;
  /** Called at the first request, because the document is made from the route table that includes these routes. */
  openApi: () => OpenApiDocument;
};

const common = { method: 'GET', tag: 'Operations', scope: 'public' } as const;

/** `GET /`, `/health`, `/health/live`, `/health/ready`, `/openapi.json`, and `/metrics` if given. None needs a key. */
export function operationalRoutes({ checkReadiness, metrics, openApi }: Deps): Route[] {
  let document: OpenApiDocument | undefined;
  const documented = (): OpenApiDocument => (document ??= openApi());
  let documentText: string | undefined;
  return [
    {
      ...common,
      path: '/',
      operationId: 'getRoot',
      summary: 'Name and entry points of this server',
      description:
        'Returns the addresses of the console, the API reference and the probes. Browsers are redirected to the console.',
      responses: {
        200: { description: 'Name, release and paths.', contentType: 'application/json' },
      },
      handler: (request, response) => {
        const { info, paths } = documented();
        // A person typed the address into a browser; programs request JSON or any type.
        if ('/console' in paths && request.accepts(['json', 'html']) === 'html') {
          response.setHeader('vary', 'accept');
          return response.redirect('console');
        }
        const entries = Object.entries({
          console: '/console',
          docs: '/docs',
          health: '/health/ready',
          metrics: '/metrics',
        });
        const present = Object.fromEntries(entries.filter(([, path]) => path in paths));
        response.json({ name: info.title, version, openapi: '/openapi.json', ...present });
      },
    },
    ...[
      {
        path: '/health/live',
        operationId: 'getLiveness',
        description: 'Returns 200 while the process runs, without further checks. Use it for the liveness probe.',
      },
      // The default of many load balancers and of clients of other gateways.
      {
        path: '/health',
        operationId: 'getHealth',
        description: 'The same as `/health/live`, under a path that many load balancers use by default.',
      },
    ].map((place): Route => ({
      ...common,
      ...place,
      summary: 'Check that the process is alive',
      responses: { 200: { description: 'The process is alive.', contentType: 'application/json' } },
      handler: (_request, response) => void response.json({ status: 'ok' }),
    })),
    {
      ...common,
      path: '/health/ready',
      operationId: 'getReadiness',
      summary: 'Check whether the process can serve requests',
      description:
        'Returns 200 when the process can serve requests and 503 otherwise, with the state of the process, the database, ' +
        'the migrations, the keys it has loaded, and the workers. Use it for the readiness probe.',
      responses: { 200: { description: 'Ready, with the state of each part.', contentType: 'application/json' } },
      handler: async (_request, response) => {
        const { required, informative } = await checkReadiness();
        const broken = Object.entries(required).filter(([, state]) => state !== 'ok');
        if (broken.length > 0) {
          const list = broken.map(([name, state]) => `${name}: ${state}`).join('; ');
          throw new GatewayError('unavailable', 'not_ready', metrics ? `Not ready (${list}).` : 'Not ready.');
        }
        response.json({ status: 'ready', ...(metrics && { checks: { ...required, ...informative } }) });
      },
    },
    ...(metrics ? [metricsRoute(metrics)] : []),
    {
      ...common,
      path: '/openapi.json',
      operationId: 'getOpenApiDocument',
      summary: 'The OpenAPI document of this API',
      description: 'Generated from the schemas that also check requests, so it always matches this release.',
      responses: { 200: { description: 'OpenAPI 3.1.', contentType: 'application/json' } },
      handler: (_request, response) => {
        documentText ??= JSON.stringify(documented());
        response.setHeader('content-type', 'application/json');
        response.end(documentText);
      },
    },
  ];
}

const metricsRoute = (metrics: Pick<HttpMetrics, 'renderMetrics'>): Route => ({
  ...common,
  path: '/metrics',
  operationId: 'getMetrics',
  summary: 'Metrics in the Prometheus text format',
  description:
    'Most metrics cover one process; the help text says which cover all. Scrape every process. The text is made at most ten times a second.',
  responses: { 200: { description: 'The metrics.', contentType: 'text/plain' } },
  handler: async (_request, response) => {
    const { contentType, body } = await metrics.renderMetrics();
    response.setHeader('content-type', contentType);
    response.end(body);
  },
});
