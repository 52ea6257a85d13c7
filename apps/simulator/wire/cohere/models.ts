import { parseFaultName } from '../../faults/faults.ts';
import { unescapePath } from '../unescape-path.ts';
import { Refusal, type Received } from '../wire-format.ts';

const listed = ['command-a-03-2025', 'command-a-reasoning-08-2025', 'embed-v4.0', 'sim-text', 'sim-echo'];
const pageSizeDefault = 20;
const pageSizeMax = 1_000;

/** GET /v1/models in pages: `page_size`, `page_token`, `endpoint`. */
export function listModels({ query }: Received): string {
  const parameters = new URLSearchParams(query);
  const endpoint = parameters.get('endpoint');
  const size = Math.min(Number(parameters.get('page_size') ?? pageSizeDefault), pageSizeMax);
  const fitting = listed.filter((name) => endpoint === null || endpointsOf(name).includes(endpoint));
  const from = Math.max(0, fitting.indexOf(parameters.get('page_token') ?? ''));
  const page = fitting.slice(from, from + size);
  const next = fitting[from + page.length];
  return JSON.stringify({
    models: page.map((name) => readModel(name)),
    ...(next === undefined ? {} : { next_page_token: next }),
  });
}

/** The model's name; throws Refusal (404) for a misspelt fault. Every other name exists. */
export function refuseUnknownModel(escapedName: string): string {
  const name = unescapePath(escapedName);
  if (parseFaultName(name) !== 'unknown') return name;
  throw new Refusal({
    status: 404,
    message: `model '${name}' not found, make sure the correct model ID was used and that you have access to the model.`,
  });
}

export function readModel(name: string) {
  return {
    name,
    is_deprecated: false,
    endpoints: endpointsOf(name),
    finetuned: false,
    context_length: 256_000,
    tokenizer_url: null,
    default_endpoints: [],
    features: name.startsWith('command') ? ['tools', 'json_schema'] : null,
  };
}

function endpointsOf(name: string): string[] {
  return name.startsWith('embed') ? ['embed'] : ['chat'];
}
