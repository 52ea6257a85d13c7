import type { HttpMetrics } from '#libs/http/metrics.ts';
import { toOpenApi } from '#libs/http/openapi.ts';
import type { Route } from '#libs/http/route.ts';

/** GET /metrics, in the Prometheus text format. */
export function metrics({ renderMetrics }: Pick<HttpMetrics, 'renderMetrics'>): Route {
  return {
    method: 'GET',
    path: '/metrics',
    operationId: 'metrics',
    summary: 'Metrics for Prometheus',
    tag: 'Operations',
    scope: 'public',
    responses: { 200: { description: 'Metrics in the Prometheus text format.', contentType: 'text/plain' } },
    handler: async (_request, response) => {
      const { contentType, body } = await renderMetrics();
      response.setHeader('content-type', contentType);
      response.end(body);
    },
  };
}

/** GET /openapi.json: made from the route table itself, this route included. */
export function openApiDocument(routes: () => readonly Route[], baseUrl: () => string): Route {
  return {
    method: 'GET',
    path: '/openapi.json',
    operationId: 'openApiDocument',
    summary: 'This API as an OpenAPI 3.1 document',
    tag: 'Operations',
    scope: 'public',
    responses: { 200: { description: 'The document.' } },
    handler: (_request, response) => {
      const description =
        'A self-hosted gateway and batch platform for language models, compatible with the OpenAI API.';
      response.json(toOpenApi(routes(), { title: 'Sluice', description, baseUrl: baseUrl() }));
    },
  };
}
