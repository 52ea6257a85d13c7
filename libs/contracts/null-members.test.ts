import { Ajv2020 } from 'ajv/dist/2020.js';
import { expect, test } from 'vitest';
import type { z } from 'zod';
import { CreateBatchRequest } from './batches/batches.ts';
import { ChatCompletionRequest } from './calls/chat.ts';
import { CompletionRequest } from './calls/completions.ts';
import { EmbeddingRequest } from './calls/embeddings.ts';
import { CreateFineTuningJobRequest } from './batches/fine-tuning.ts';
import { toJsonSchema } from './json-schema.ts';
import { tryParse } from './parse.ts';

// Typed clients (guidance, LiteLLM, Pydantic models) write every member that they know, with null for missing values.

type Node = { properties?: Record<string, object>; required?: string[]; anyOf?: Node[]; oneOf?: Node[]; items?: Node };

/** Every optional member of an object anywhere in a JSON Schema, with the schema of its value. */
function optionalMembers(node: Node, at: string): { path: string; schema: object }[] {
  const here = Object.entries(node.properties ?? {}).flatMap(([name, schema]) => [
    ...(node.required?.includes(name) === true ? [] : [{ path: `${at}.${name}`, schema }]),
    ...optionalMembers(schema, `${at}.${name}`),
  ]);
  const branches = [...(node.anyOf ?? []), ...(node.oneOf ?? [])].flatMap((branch) => optionalMembers(branch, at));
  return [...here, ...branches, ...(node.items === undefined ? [] : optionalMembers(node.items, `${at}[]`))];
}

const bodies: [string, z.ZodType, number][] = [
  ['chat', ChatCompletionRequest, 35],
  ['completions', CompletionRequest, 15],
  ['embeddings', EmbeddingRequest, 3],
  ['batch', CreateBatchRequest, 30],
  ['fine-tuning job', CreateFineTuningJobRequest, 25],
];

test.each(bodies)('every optional member of a %s body may be null', (_name, body, countMin) => {
  const ajv = new Ajv2020({ strict: false, validateFormats: false });
  const members = optionalMembers(toJsonSchema(body), 'body');
  expect(members.length).toBeGreaterThanOrEqual(countMin);
  const refused = members.filter(({ schema }) => !ajv.validate(schema, null));
  expect(refused.map(({ path }) => path)).toEqual([]);
});

test('a member that is null counts as one that is not given', () => {
  const batch = { input_file_id: 'file-1', endpoint: '/v1/completions', completion_window: '24h' };
  const options = { virtual_key: null, 'x-portkey-virtual-key': 'mine', config: null, metadata: null };
  expect(CreateBatchRequest.parse({ ...batch, gateway_options: options }).gateway_options).toEqual({
    virtual_key: 'mine',
  });
  const part = (fields: object) => ({ model: 'm', messages: [{ role: 'user', content: [fields] }] });
  const both = { text: 'Hi', image_url: null };
  expect(ChatCompletionRequest.safeParse(part({ type: 'text', ...both })).success).toBe(true);
  expect(tryParse(ChatCompletionRequest, part({ type: 'image_url', ...both }))).toMatchObject({
    problem: { code: 'missing_required_parameter', param: 'messages[0].content[0].image_url' },
  });
});
