import type { OperationTexts } from '#libs/http/openapi.ts';

const page = 'For people, in a browser. Its policy lets it load and call nothing but this server.';
const asset = 'Loaded by the page; its name changes with its content, or it is checked again.';

/** Sessions, the state of the installation, its pages and probes. */
export const serverTexts: OperationTexts = {
  retrieveSession: {
    description:
      'For any key, token or cookie, whatever its scopes are: the workspace, the person or key, scopes, and when it expires.',
    errors: { invalid_api_key: 'there is no such key, or it was revoked' },
  },
  createSession: {
    description:
      'The cookie is HttpOnly and SameSite=Strict, holds the key encrypted, and ends with it. A request with the cookie that changes ' +
      'something also needs the header `x-sluice-console`. It works for requests of scripts, not for addresses that the browser opens ' +
      "as pages (`not_a_page`), and not for calls that relay a provider's answer (`use_a_key`).",
    errors: {
      invalid_api_key: 'there is no such key, or it was revoked',
      foreign_page: 'a page of another origin sent it',
      too_many_sessions: 'the user or key signs in more than 30 times a minute',
    },
  },
  deleteSession: {
    description:
      'The cookie is deleted, and a copy of it stops working within a second. The key stays as it is. With `everywhere=true`, all sessions ' +
      'of the same user or key end.',
  },
  streamChanges: {
    description:
      'Server-sent events for pages that read again what has changed: `event: change` with `{"noun": "batch", "id": "batch_…"}`, and ' +
      '`event: calls` when the request log has new records. They have no ids; a client that connects again reads everything anew.',
    errors: { too_many_streams: 'the process or the workspace has as many streams open as it may have' },
  },
  retrieveSystem: {
    description:
      'Processes by their heartbeats, waiting jobs, the lag of subscribers and rollups, the size of the database, versions, and the last ' +
      'check of the read models; with `Accept: text/event-stream` again every few seconds. The same from every process.',
    errors: {
      organisation_key_required: 'the key is of a workspace',
      too_many_streams: 'as many streams are open as may be',
    },
  },
  createSystemCheck: {
    description:
      'A worker computes every record anew from the events and compares it; nothing is changed. While one waits or runs, it is the answer.',
    errors: { organisation_key_required: 'the key is of a workspace' },
  },
  listCircuits: {
    description:
      'Targets of the workspace that failed too often and are not called until the time in `open_until`, in any process.',
  },
  listProviderLimits: {
    description:
      'What the last answers said of the limits of each credential and model: how much is allowed, what was left at the time in ' +
      '`reported_at`, and how long calls wait after a 429. As any process heard it, at most a day and 200 of them; nothing acts on it.',
  },
  getDocs: { description: `Every operation can be tried with a key. ${page}` },
  getDocsPageJs: { description: asset },
  getDocsPageCss: { description: asset },
  getDocsSwaggerUiBundleJs: { description: asset },
  getDocsSwaggerUiCss: { description: asset },
  getConsoleAsset: { description: asset },
  getConsole: { description: page },
  getConsolePage: { description: page },
  getConsoleRecord: { description: page },
  getConsolePart: { description: page },
  getRoot: { description: 'For somebody who opens the address: where the console, the reference and the probes are.' },
  getLiveness: { description: 'Answers 200 while the process runs; it looks at nothing else. For the liveness probe.' },
  getHealth: { description: 'The same as `/health/live`, under the name that load balancers expect.' },
  getReadiness: {
    description:
      '200 when the process can serve requests, otherwise 503, each with the state of the process, the database, the migrations, the keys ' +
      'that it knows, and the workers. For the readiness probe.',
  },
  getMetrics: { description: 'Of this process and, where that is said, of all. Scrape every process.' },
  getOpenApiDocument: { description: 'Made from the same schemas that check the requests, so it is of this release.' },
};
