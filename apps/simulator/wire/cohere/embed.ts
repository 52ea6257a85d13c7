import { z } from 'zod';
import { embed, toBase64 } from '../../model/embed.ts';
import { hashText } from '../../model/hash.ts';
import { countTokens } from '../../model/tokens.ts';
import { checkShape } from '../check-shape.ts';
import type { Call, Received } from '../wire-format.ts';
import { uuidOf } from './chat.ts';
import { refuse, refuseFlaw } from './decode-chat.ts';

const inputPart = z.union([
  z.strictObject({ type: z.literal('text'), text: z.string() }),
  z.strictObject({ type: z.literal('image_url'), image_url: z.strictObject({ url: z.string() }) }),
]);
const request = z.strictObject({
  model: z.string().min(1),
  input_type: z.enum(['search_document', 'search_query', 'classification', 'clustering', 'image']),
  texts: z.array(z.string()).min(1).max(96).optional(),
  images: z.array(z.string()).min(1).max(1).optional(),
  inputs: z
    .array(z.strictObject({ content: z.array(inputPart).min(1) }))
    .min(1)
    .max(96)
    .optional(),
  max_tokens: z.int().optional(),
  output_dimension: z.union([z.literal(256), z.literal(512), z.literal(1024), z.literal(1536)]).optional(),
  embedding_types: z
    .array(z.enum(['float', 'int8', 'uint8', 'binary', 'ubinary', 'base64']))
    .min(1)
    .optional(),
  truncate: z.enum(['NONE', 'START', 'END']).optional(),
  priority: z.int().optional(),
});
const sizeDefault = 1024;
type Kind = NonNullable<z.output<typeof request>['embedding_types']>[number];

/** POST /v2/embed. */
export function embedCall(received: Received): Call {
  const body = checkShape(request, received.json, refuseFlaw);
  const { model, texts, images, inputs } = body;
  if ([texts, images, inputs].filter((given) => given !== undefined).length !== 1) {
    refuse('invalid request: exactly one of texts, images and inputs must be given.');
  }
  const items = texts ?? images ?? (inputs ?? []).map((input) => JSON.stringify(input));
  return {
    model,
    hash: hashText(`${model}\n${items.join('\n')}`),
    user: undefined,
    stream: false,
    frames: () => [],
    body: ({ manner, omitUsage }) => {
      const vectors = items.map((item) => embed(hashText(`${model}\n${item}`), body.output_dimension ?? sizeDefault));
      const kinds = body.embedding_types ?? ['float'];
      const tokens = items.reduce((sum, item) => sum + countTokens(item), 0);
      const billed = omitUsage === true ? {} : { billed_units: { input_tokens: tokens } };
      return JSON.stringify({
        id: uuidOf(hashText(items.join('\n'))),
        texts: texts ?? [],
        embeddings: Object.fromEntries(kinds.map((kind) => [kind, vectors.map((vector) => convert(vector, kind))])),
        meta: { api_version: { version: '2' }, ...billed },
        response_type: 'embeddings_by_type',
        ...(manner === 'reflect' ? { reflected_body: received.text } : {}),
      });
    },
  };
}

function convert(vector: readonly number[], kind: Kind): unknown {
  switch (kind) {
    case 'float':
      return vector;
    case 'base64':
      return toBase64(vector);
    case 'int8':
      return vector.map((value) => Math.round(value * 127));
    case 'uint8':
      return vector.map((value) => Math.round(value * 127) + 128);
    case 'ubinary':
      return packBits(vector);
    case 'binary':
      return packBits(vector).map((byte) => byte - 128);
  }
}

function packBits(vector: readonly number[]): number[] {
  return Array.from({ length: Math.ceil(vector.length / 8) }, (_, at) =>
    vector.slice(at * 8, at * 8 + 8).reduce((byte, value, bit) => byte | (value > 0 ? 0x80 >> bit : 0), 0),
  );
}
