import { z } from 'zod';
import { hashText } from '#apps/simulator/model/hash.ts';
import { countTokens } from '#apps/simulator/model/tokens.ts';
import { checkShape } from '#apps/simulator/wire/check-shape.ts';
import type { Call, Received } from '#apps/simulator/wire/wire-format.ts';
import { camelCase } from './camel-case.ts';
import { refuseFlaw } from './google-error.ts';
import { googleJson } from './streams.ts';

const request = z.strictObject({
  contents: z.array(z.looseObject({ parts: z.array(z.looseObject({ text: z.string().optional() })) })),
});

/** POST …:countTokens. */
export function countCall(received: Received, model: string): Call {
  const { contents } = checkShape(request, camelCase(received.json), refuseFlaw);
  const text = contents.flatMap(({ parts }) => parts.map((part) => part.text ?? '')).join('\n');
  return {
    model,
    hash: hashText(`${model}\n${text}`),
    user: undefined,
    stream: false,
    contentType: googleJson,
    frames: () => [],
    body: () => JSON.stringify({ totalTokens: countTokens(text) }),
  };
}
