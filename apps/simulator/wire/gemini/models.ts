import { parseFaultName } from '../../faults/faults.ts';
import { Refusal, type Received } from '../wire-format.ts';

const listed = [
  'gemini-3-pro-preview',
  'gemini-2.5-pro',
  'gemini-2.5-flash',
  'gemini-embedding-001',
  'sim-text',
  'sim-echo',
];
const pageSizeDefault = 50;
const pageSizeMax = 1_000;

/** GET /v1beta/models in pages: `pageSize`, `pageToken`. */
export function listModels({ query }: Received): string {
  const parameters = new URLSearchParams(query);
  const size = Math.min(Number(parameters.get('pageSize') ?? pageSizeDefault), pageSizeMax);
  const from = Math.max(0, listed.indexOf(parameters.get('pageToken') ?? ''));
  const page = listed.slice(from, from + size);
  const next = listed[from + page.length];
  return JSON.stringify({
    models: page.map((id) => readModel(id)),
    ...(next === undefined ? {} : { nextPageToken: next }),
  });
}

/** GET /v1beta/models/{m}: every name exists, except misspelt faults. Throws Refusal (404). */
export function findModel(id: string): string {
  if (parseFaultName(id) === 'unknown') {
    throw new Refusal({ status: 404, message: `models/${id} is not found for API version v1beta.` });
  }
  return JSON.stringify(readModel(id));
}

function readModel(id: string) {
  const methods = id.includes('embedding')
    ? ['embedContent', 'batchEmbedContents']
    : ['generateContent', 'streamGenerateContent'];
  return {
    name: `models/${id}`,
    version: '001',
    displayName: id,
    description: 'A model of the simulator.',
    inputTokenLimit: 1_048_576,
    outputTokenLimit: 65_536,
    supportedGenerationMethods: methods,
  };
}
