import { Ajv2020 } from 'ajv/dist/2020.js';
import { expect, test } from 'vitest';
import type { z } from 'zod';
import * as apiKeys from './api-keys.ts';
import * as batches from './batches.ts';
import * as chat from './chat.ts';
import * as completions from './completions.ts';
import * as embeddings from './embeddings.ts';
import * as files from './files.ts';
import { toJsonSchema } from './json-schema.ts';
import * as logs from './logs.ts';
import * as models from './models.ts';
import * as virtualKeys from './virtual-keys.ts';

const modules = { apiKeys, batches, chat, completions, embeddings, files, logs, models, virtualKeys };
const schemas = Object.values(modules).flatMap((module) =>
  Object.entries(module).filter(
    (entry): entry is [string, z.ZodType] => typeof entry[1] === 'object' && '_zod' in entry[1],
  ),
);

test.each(schemas)('%s has a JSON Schema that compiles', (_name, schema) => {
  const ajv = new Ajv2020({ strict: false, validateFormats: false });
  expect(ajv.compile(toJsonSchema(schema))).toBeTypeOf('function');
});

test('every public shape is among them', () => {
  expect(schemas.length).toBeGreaterThan(25);
});
