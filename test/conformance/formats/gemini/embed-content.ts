import { z } from 'zod';
import { embed } from '#apps/simulator/model/embed.ts';
import { hashText } from '#apps/simulator/model/hash.ts';
import { checkShape } from '#apps/simulator/wire/check-shape.ts';
import type { Call, Received } from '#apps/simulator/wire/wire-format.ts';
import { camelCase } from './camel-case.ts';
import { refuse, refuseFlaw } from './google-error.ts';
import { googleJson } from './streams.ts';

const request = z.strictObject({
  model: z.string().optional(),
  content: z.looseObject({ parts: z.array(z.looseObject({ text: z.string().optional() })) }),
  taskType: z
    .string()
    .regex(/^[A-Z_]+$/)
    .optional(),
  title: z.string().optional(),
  outputDimensionality: z.int().min(1).max(8192).optional(),
});
const batch = z.strictObject({
  requests: z
    .array(request.extend({ model: z.string() }))
    .min(1)
    .max(100),
});

/** POST /v1beta/models/{m}:embedContent. */
export function embedCall(received: Received, model: string): Call {
  const asked = checkShape(request, camelCase(received.json), refuseFlaw);
  return callOf(received, model, () => ({ embedding: { values: valuesOf(asked, model) } }));
}

/** POST /v1beta/models/{m}:batchEmbedContents: every request names the model in the path. */
export function batchEmbedCall(received: Received, model: string): Call {
  const { requests } = checkShape(batch, camelCase(received.json), refuseFlaw);
  for (const [index, { model: named }] of requests.entries()) {
    if (named !== `models/${model}`) {
      refuse(
        `* BatchEmbedContentsRequest.requests[${index}].model: model does not match the one in the path: models/${model}`,
      );
    }
  }
  return callOf(received, model, () => ({ embeddings: requests.map((asked) => ({ values: valuesOf(asked, model) })) }));
}

// The lengths of the real models; other names get a short vector.
export const embeddingSizes: Record<string, number> = {
  'gemini-embedding-001': 3072,
  'text-embedding-004': 768,
  'text-embedding-005': 768,
};
export const embeddingSizeDefault = 256;

function valuesOf(asked: z.output<typeof request>, model: string): number[] {
  const size = asked.outputDimensionality ?? embeddingSizes[model] ?? embeddingSizeDefault;
  return embed(hashText(`${model}\n${asked.content.parts.map(({ text }) => text ?? '').join('\n')}`), size);
}

function callOf(received: Received, model: string, answer: () => object): Call {
  return {
    model,
    hash: hashText(`${model}\n${received.text}`),
    user: undefined,
    stream: false,
    contentType: googleJson,
    frames: () => [],
    body: ({ manner }) =>
      JSON.stringify(manner === 'reflect' ? { ...answer(), reflected_body: received.text } : answer()),
  };
}
