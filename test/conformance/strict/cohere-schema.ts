import { z } from 'zod';

// Unknown members are rejected.
const anything = z.unknown().optional();
const text = z.strictObject({ type: z.literal('text'), text: z.string() });
const image = z.strictObject({
  type: z.literal('image_url'),
  image_url: z.strictObject({ url: z.string(), detail: z.enum(['auto', 'low', 'high']).optional() }),
});
const thinkingPart = z.strictObject({ type: z.literal('thinking'), thinking: z.string() });
const document = z.strictObject({
  type: z.literal('document'),
  document: z.strictObject({
    id: z.string().optional(),
    data: z.union([z.string(), z.record(z.string(), z.unknown())]),
  }),
});
const toolCall = z.strictObject({
  id: z.string().min(1),
  type: z.literal('function'),
  function: z.strictObject({ name: z.string(), arguments: z.string() }),
});
const message = z.discriminatedUnion('role', [
  z.strictObject({ role: z.literal('system'), content: z.union([z.string(), z.array(text)]) }),
  z.strictObject({
    role: z.literal('user'),
    content: z.union([z.string(), z.array(z.discriminatedUnion('type', [text, image])).min(1)]),
  }),
  z.strictObject({
    role: z.literal('assistant'),
    content: z.union([z.string(), z.array(z.discriminatedUnion('type', [text, thinkingPart]))]).nullish(),
    tool_calls: z.array(toolCall).nullish(),
    tool_plan: z.string().nullish(),
    citations: anything,
  }),
  z.strictObject({
    role: z.literal('tool'),
    tool_call_id: z.string().min(1),
    content: z.union([z.string(), z.array(z.discriminatedUnion('type', [text, document]))]),
  }),
]);
const tool = z.strictObject({
  type: z.literal('function'),
  function: z.strictObject({
    name: z.string().regex(/^[a-zA-Z0-9_-]+$/),
    description: z.string().nullish(),
    parameters: z.looseObject({ type: z.literal('object').optional() }),
  }),
});

export const chatRequest = z.strictObject({
  model: z.string().min(1),
  messages: z.array(message).min(1),
  stream: z.boolean().optional(),
  tools: z.array(tool).optional(),
  strict_tools: z.boolean().optional(),
  documents: anything,
  citation_options: anything,
  response_format: z
    .discriminatedUnion('type', [
      z.strictObject({ type: z.literal('text') }),
      z.strictObject({
        type: z.literal('json_object'),
        json_schema: z.record(z.string(), z.unknown()).nullish(),
        schema: z.record(z.string(), z.unknown()).nullish(),
      }),
    ])
    .nullish(),
  safety_mode: z.enum(['CONTEXTUAL', 'STRICT', 'OFF']).optional(),
  max_tokens: z.int().min(1).nullish(),
  stop_sequences: z.array(z.string()).max(5).nullish(),
  temperature: z.number().min(0).max(1).nullish(),
  seed: z.int().min(0).nullish(),
  frequency_penalty: z.number().min(0).max(1).nullish(),
  presence_penalty: z.number().min(0).max(1).nullish(),
  k: z.int().min(0).max(500).nullish(),
  p: z.number().min(0.01).max(0.99).nullish(),
  logprobs: z.boolean().nullish(),
  tool_choice: z.enum(['REQUIRED', 'NONE']).nullish(),
  thinking: z.strictObject({ type: z.enum(['enabled', 'disabled']), token_budget: z.int().min(1).nullish() }).nullish(),
  priority: z.int().optional(),
});

export type Message = z.output<typeof message>;
