import { parseFaultName } from '../../faults/faults.ts';
import { hashText } from '../../model/hash.ts';
import { createdAt } from '../openai/shapes.ts';
import { unescapePath } from '../unescape-path.ts';
import { Refusal, type Received } from '../wire-format.ts';

const listed = [
  'claude-sonnet-4-5-20250929',
  'claude-haiku-4-5-20251001',
  'claude-opus-4-1-20250805',
  'sim-text',
  'sim-echo',
];
const limitDefault = 20;
const limitMax = 1_000;

/** GET /v1/models in pages: `limit`, `after_id`, `before_id`. */
export function listModels({ query }: Received): string {
  const parameters = new URLSearchParams(query);
  const limit = Number(parameters.get('limit') ?? limitDefault);
  if (!Number.isInteger(limit) || limit < 1 || limit > limitMax) {
    throw new Refusal({ status: 400, message: `limit: Input should be between 1 and ${limitMax}` });
  }
  const after = listed.indexOf(parameters.get('after_id') ?? '');
  const before = listed.indexOf(parameters.get('before_id') ?? '');
  const rest = listed.slice(after + 1, before === -1 ? undefined : before);
  const page = rest.slice(0, limit);
  return JSON.stringify({
    data: page.map((id) => readModel(id)),
    has_more: rest.length > page.length,
    first_id: page[0] ?? null,
    last_id: page.at(-1) ?? null,
  });
}

/** GET /v1/models/{id}: every name exists, except misspelt faults. Throws Refusal (404). */
export function findModel(escapedId: string): string {
  const id = unescapePath(escapedId);
  if (id === '' || parseFaultName(id) === 'unknown') throw new Refusal({ status: 404, message: `model: ${id}` });
  return JSON.stringify(readModel(id));
}

function readModel(id: string) {
  const createdAtText = new Date(createdAt(hashText(id)) * 1_000).toISOString().replace('.000Z', 'Z');
  return { type: 'model', id, display_name: id, created_at: createdAtText };
}
