import { GatewayError } from '#libs/kernel/errors.ts';
import type { Upstream } from '../provider.ts';
import { addressFrom, partsOf } from '../url-parts.ts';
import { getServiceAccount } from './service-account.ts';

// All of these become part of a URL. Their forms allow no characters that could change its destination (SEC-3).
const regionForm = /^[a-z]{2,20}(-[a-z]{2,20}\d{1,3})?$/;
/** Projects of old organisations have a domain in front (`example.com:project`). */
const projectForm = /^(?:[a-z0-9][a-z0-9-]{0,60}(?:\.[a-z0-9-]{1,60}){1,5}:)?[a-z0-9][a-z0-9-]{0,60}$/;
/** The names of Claude models end with a date (`claude-sonnet-4-5@20250929`). */
const modelForm = /^[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,120}(?:@[A-Za-z0-9]{1,20})?$/;

/** The region's base URL; null without `vertex_region`. Throws invalid_request for an invalid region. */
export const getRegionAddress = addressFrom('vertex_region', (region) => {
  checkForm(region, regionForm, 'vertex_region', 'a region such as us-central1, or global');
  return `https://${hostOf(region)}/v1`;
});

/** `us` and `eu` are multi-regions, which have other host names. */
function hostOf(region: string): string {
  if (region === 'global') return 'aiplatform.googleapis.com';
  if (region === 'us' || region === 'eu') return `aiplatform.${region}.rep.googleapis.com`;
  return `${region}-aiplatform.googleapis.com`;
}

/**
 * `{folder}/projects/{project}/locations/{region}` of a target; the project is `vertex_project_id`, or the one that the
 * service account belongs to. Throws invalid_request for a missing or invalid setting.
 */
export function getTargetLocation(upstream: Upstream): { origin: string; path: string } {
  const { settings, baseUrl } = upstream;
  const region = settings['vertex_region'] || missing('vertex_region');
  const project =
    settings['vertex_project_id'] || getServiceAccount(upstream)?.projectId || missing('vertex_project_id');
  checkForm(region, regionForm, 'vertex_region', 'a region such as us-central1, or global');
  checkForm(project, projectForm, 'vertex_project_id', 'a project ID such as my-project-123');
  const { origin, folder } = partsOf(baseUrl);
  return { origin, path: `${folder}/projects/${encodeURIComponent(project)}/locations/${region}` };
}

/** Where a model runs: Google's own, Anthropic's, or behind the OpenAI-compatible endpoint. */
export type VertexModel = { publisher: 'google' | 'anthropic' | 'openapi'; path: string };

/**
 * Determines from its name where a model runs: `gemini-…` (or `google/…`), `claude-…` (or `anthropic/…`), `endpoints/123`
 * (a tuned Gemini), and `publisher/model` for all others. Throws invalid_request for any other name.
 */
export function parseVertexModel(name: unknown): VertexModel {
  const model = String(name);
  const [, publisher, rest] = /^(google|anthropic)[./](.+)$/.exec(model) ?? [];
  if (model.startsWith('endpoints/')) {
    if (!/^endpoints\/\d{1,30}$/.test(model)) throw invalidModel();
    return { publisher: 'google', path: `/${model}` };
  }
  if (publisher === 'google' || model.startsWith('gemini-')) return ofPublisher('google', rest ?? model);
  if (publisher === 'anthropic' || model.startsWith('claude-')) return ofPublisher('anthropic', rest ?? model);
  const [vendor = '', named = '', ...more] = model.split('/');
  if (more.length > 0 || !modelForm.test(vendor) || !modelForm.test(named)) throw invalidModel();
  return { publisher: 'openapi', path: '/endpoints/openapi' };
}

/** `/publishers/{publisher}/models/{name}`, with the name encoded as a path segment. */
export function ofPublisher(publisher: 'google' | 'anthropic', name: string): VertexModel {
  if (!modelForm.test(name)) throw invalidModel();
  // This is how Anthropic's own SDK writes it. It is harmless in a path.
  const segment = encodeURIComponent(name).replace('%40', '@');
  return { publisher, path: `/publishers/${publisher}/models/${segment}` };
}

function checkForm(value: string, form: RegExp, name: string, expected: string): void {
  if (form.test(value)) return;
  throw new GatewayError('invalid_request', 'invalid_value', `Invalid '${name}': expected ${expected}.`, {
    param: name,
  });
}

function missing(name: string): never {
  throw new GatewayError(
    'invalid_request',
    'missing_setting',
    `Vertex AI needs '${name}'. Set it on the virtual key.`,
    { param: name },
  );
}

const invalidModel = (): GatewayError =>
  new GatewayError(
    'invalid_request',
    'invalid_value',
    "Invalid 'model': expected a name such as gemini-2.5-flash, claude-sonnet-4-5@20250929 or meta/llama-4-maverick.",
    { param: 'model' },
  );
