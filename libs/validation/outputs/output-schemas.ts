import { hash } from 'node:crypto';
import type { ValidateFunction } from 'ajv';
import { LRUCache } from 'lru-cache';
import { createValidator } from '../lines/check-response-schema.ts';
import { defaultLimits } from '../validation.ts';
import { finishesInTime } from '#libs/threads/run-within.ts';
import type { CheckedOperation } from './answer-contents.ts';

/** `unusable`: why the schema cannot be used. */
export type OutputSchema = { validate: ValidateFunction } | { unusable: string };

type Entry = { schema: OutputSchema | null; textBytes: number };

// Measured: a compiled schema takes 13 KB, and 16 bytes for each byte of its text.
const sizeOf = ({ textBytes }: Entry): number => 13_000 + 16 * textBytes;
const schemas = new LRUCache<string, Entry>({ maxSize: 33_554_432, sizeCalculation: sizeOf });

type Format = { type?: unknown; schema?: unknown; json_schema?: { schema?: unknown } | null } | null;

/**
 * Returns the compiled schema of a request; null if it has none. `format` is the JSON of its `response_format`, or of
 * `text` for responses. Schemas that cannot be used are remembered, too: each costs up to a second.
 */
export function findSchema(operation: CheckedOperation, format: Uint8Array): OutputSchema | null {
  const key = hash('sha256', format, 'base64');
  const known = schemas.get(key);
  if (known !== undefined) return known.schema;
  const entry = compile(readSchema(operation, format));
  schemas.set(key, entry);
  return entry.schema;
}

function readSchema(operation: CheckedOperation, bytes: Uint8Array): unknown {
  const member = JSON.parse(Buffer.from(bytes).toString()) as (Format & { format?: Format }) | null;
  const format = operation === 'chat' ? member : member?.format;
  if (format?.type !== 'json_schema') return undefined;
  return operation === 'chat' ? format.json_schema?.schema : format.schema;
}

function compile(schema: unknown): Entry {
  if (typeof schema !== 'object' || schema === null) return { schema: null, textBytes: 0 };
  const { schemaBytesMax, schemaTimeoutMs } = defaultLimits;
  const textBytes = Buffer.byteLength(JSON.stringify(schema));
  const unusable = (why: string): Entry => ({ schema: { unusable: why }, textBytes: 0 });
  if (textBytes > schemaBytesMax) return unusable(`it has ${textBytes} bytes, more than ${schemaBytesMax}`);
  let validate: ValidateFunction | undefined;
  const work = (): void => {
    validate = createValidator(schema);
  };
  try {
    const isDone = finishesInTime(() => work, schemaTimeoutMs);
    if (isDone && validate !== undefined) return { schema: { validate }, textBytes };
    return unusable(`it takes longer than ${schemaTimeoutMs} ms to compile`);
  } catch (error) {
    if (error instanceof RangeError) return unusable('it is too complex');
    return unusable(`it does not compile: ${error instanceof Error ? error.message : String(error)}`);
  }
}
