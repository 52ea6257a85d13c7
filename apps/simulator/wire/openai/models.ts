import { parseFaultName } from '../../faults/faults.ts';
import { hashText } from '../../model/hash.ts';
import { unescapePath } from '../unescape-path.ts';
import { Refusal } from '../wire-format.ts';
import { createdAt } from './shapes.ts';

// Any name works; these are listed for clients that offer a choice of models.
const listed = [
  'sim-text',
  'sim-echo',
  'sim-reflect',
  'gpt-4o',
  'gpt-4o-mini',
  'gpt-4.1-nano',
  'gpt-3.5-turbo-instruct',
  'text-embedding-3-small',
  'text-embedding-3-large',
  'sim-fault-429',
  'sim-fault-500-then-ok-2',
  'sim-flaky-10',
  'sim-storm-95',
];

/** GET /v1/models. */
export function listModels(): string {
  return JSON.stringify({ object: 'list', data: listed.map((id) => readModel(id)) });
}

/** GET /v1/models/{id}: every name exists, except misspelt faults. Throws Refusal (404). */
export function findModel(escapedId: string): string {
  const id = unescapePath(escapedId);
  if (id === '' || parseFaultName(id) === 'unknown') {
    throw new Refusal({
      status: 404,
      message: `The model '${id}' does not exist`,
      type: 'invalid_request_error',
      param: 'model',
      code: 'model_not_found',
    });
  }
  return JSON.stringify(readModel(id));
}

function readModel(id: string) {
  return { id, object: 'model', created: createdAt(hashText(id)), owned_by: 'sluice-simulator' };
}
