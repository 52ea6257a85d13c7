import { z } from 'zod';
import { embed } from '../../model/embed.ts';
import { hashText } from '../../model/hash.ts';
import { countTokens } from '../../model/tokens.ts';
import { checkShape } from '../check-shape.ts';
import { embeddingSizeDefault, embeddingSizes } from '../gemini/embed-content.ts';
import { refuseFlaw } from '../gemini/google-error.ts';
import { googleJson } from '../gemini/streams.ts';
import type { Call, Received } from '../wire-format.ts';

const request = z.strictObject({
  instances: z
    .array(z.strictObject({ content: z.string(), task_type: z.string().optional(), title: z.string().optional() }))
    .min(1)
    .max(250),
  parameters: z
    .strictObject({ autoTruncate: z.boolean().optional(), outputDimensionality: z.int().min(1).max(8192).optional() })
    .optional(),
});

/** POST …/publishers/google/models/{m}:predict, for embedding models. */
export function predictCall(received: Received, model: string): Call {
  const { instances, parameters } = checkShape(request, received.json, refuseFlaw);
  const size = parameters?.outputDimensionality ?? embeddingSizes[model] ?? embeddingSizeDefault;
  return {
    model,
    hash: hashText(`${model}\n${received.text}`),
    user: undefined,
    stream: false,
    contentType: googleJson,
    frames: () => [],
    body: ({ manner }) => {
      const predictions = instances.map(({ content }) => {
        const statistics = { token_count: countTokens(content), truncated: false };
        return { embeddings: { statistics, values: embed(hashText(`${model}\n${content}`), size) } };
      });
      const billableCharacterCount = instances.reduce(
        (sum, { content }) => sum + content.replaceAll(/\s/g, '').length,
        0,
      );
      const reflected = manner === 'reflect' ? { reflected_body: received.text } : {};
      return JSON.stringify({ predictions, metadata: { billableCharacterCount }, ...reflected });
    },
  };
}
