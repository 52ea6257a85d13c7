import { Ajv2020 } from 'ajv/dist/2020.js';
import { expect, test } from 'vitest';
import type { z } from 'zod';
import * as apiKeys from './people/api-keys.ts';
import * as batches from './batches/batches.ts';
import * as chat from './calls/chat.ts';
import * as completions from './calls/completions.ts';
import * as embeddings from './calls/embeddings.ts';
import * as files from './batches/files.ts';
import { toJsonSchema } from './json-schema.ts';
import * as logs from './logs/logs.ts';
import * as models from './calls/models.ts';
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
