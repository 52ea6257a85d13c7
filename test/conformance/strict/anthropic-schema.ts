import { z } from 'zod';

// Strict, as the real service is: "Extra inputs are not permitted".
const cache = {
  cache_control: z.strictObject({ type: z.literal('ephemeral'), ttl: z.enum(['5m', '1h']).optional() }).nullish(),
};

const anything = z.unknown().optional();

const text = z.strictObject({
  type: z.literal('text'),
  text: z.string().min(1, 'text content blocks must be non-empty'),
  citations: anything,
  ...cache,
});
const imageSource = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('base64'),
    media_type: z.enum(['image/jpeg', 'image/png', 'image/gif', 'image/webp']),
    data: z.base64(),
  }),
  z.strictObject({ type: z.literal('url'), url: z.url() }),
  z.strictObject({ type: z.literal('file'), file_id: z.string() }),
]);
const image = z.strictObject({ type: z.literal('image'), source: imageSource, ...cache });
const documentSource = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('base64'), media_type: z.literal('application/pdf'), data: z.base64() }),
  z.strictObject({ type: z.literal('text'), media_type: z.literal('text/plain'), data: z.string() }),
  z.strictObject({ type: z.literal('url'), url: z.url() }),
  z.strictObject({ type: z.literal('file'), file_id: z.string() }),
  z.strictObject({ type: z.literal('content'), content: z.union([z.string(), z.array(z.union([text, image]))]) }),
]);
const document = z.strictObject({
  type: z.literal('document'),
  source: documentSource,
  title: z.string().nullish(),
  context: z.string().nullish(),
  citations: anything,
  ...cache,
});
const toolUse = z.strictObject({
  type: z.literal('tool_use'),
  id: z.string().regex(/^[a-zA-Z0-9_-]+$/, "String should match pattern '^[a-zA-Z0-9_-]+$'"),
  name: z.string().min(1),
  input: z.record(z.string(), z.unknown()),
  caller: anything,
  ...cache,
});
const toolResult = z.strictObject({
  type: z.literal('tool_result'),
  tool_use_id: z.string(),
  content: z.union([z.string(), z.array(z.discriminatedUnion('type', [text, image, document]))]).nullish(),
  is_error: z.boolean().nullish(),
  ...cache,
});
const thinking = z.strictObject({ type: z.literal('thinking'), thinking: z.string(), signature: z.string() });
const redacted = z.strictObject({ type: z.literal('redacted_thinking'), data: z.string() });

const block = z.discriminatedUnion('type', [text, image, document, toolUse, toolResult, thinking, redacted]);
const message = z.strictObject({
  role: z.enum(['user', 'assistant'], "Input should be 'user' or 'assistant'"),
  content: z.union([z.string(), z.array(block)]),
});

const customTool = z.strictObject({
  type: z.literal('custom').nullish(),
  name: z.string().regex(/^[a-zA-Z0-9_-]{1,128}$/, "String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"),
  description: z.string().nullish(),
  input_schema: z.looseObject({ type: z.literal('object') }),
  strict: z.boolean().nullish(),
  defer_loading: z.boolean().nullish(),
  eager_input_streaming: z.boolean().nullish(),
  allowed_callers: z.array(z.string()).nullish(),
  input_examples: z.array(z.unknown()).nullish(),
  ...cache,
});
// web_search_20250305 and the like run at the provider; their settings are not checked.
const serverTool = z.looseObject({ type: z.string().regex(/_\d{8}$/), name: z.string() });

const parallel = { disable_parallel_tool_use: z.boolean().optional() };
const toolChoice = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('auto'), ...parallel }),
  z.strictObject({ type: z.literal('any'), ...parallel }),
  z.strictObject({ type: z.literal('tool'), name: z.string(), ...parallel }),
  z.strictObject({ type: z.literal('none') }),
]);
const display = z.enum(['summarized', 'omitted']).nullish();
const thinkingConfig = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('enabled'),
    budget_tokens: z.int().min(1024, 'Input should be greater than or equal to 1024'),
    display,
  }),
  z.strictObject({ type: z.literal('adaptive'), display }),
  z.strictObject({ type: z.literal('disabled') }),
]);
const format = z.strictObject({ type: z.literal('json_schema'), schema: z.record(z.string(), z.unknown()) });

const members = {
  max_tokens: z.int().min(1, 'Input should be greater than or equal to 1'),
  messages: z.array(message).min(1, 'at least one message is required'),
  system: z.union([z.string(), z.array(text)]).nullish(),
  metadata: z.strictObject({ user_id: z.string().max(256).nullish() }).nullish(),
  stop_sequences: z.array(z.string().regex(/\S/, 'each stop sequence must contain non-whitespace')).nullish(),
  stream: z.boolean().optional(),
  temperature: z.number().min(0).max(1, 'Input should be less than or equal to 1').nullish(),
  top_k: z.int().min(0).nullish(),
  top_p: z.number().min(0).max(1).nullish(),
  tools: z.array(z.union([customTool, serverTool])).nullish(),
  tool_choice: toolChoice.nullish(),
  thinking: thinkingConfig.nullish(),
  output_config: z
    .strictObject({ effort: z.enum(['low', 'medium', 'high', 'xhigh', 'max']).nullish(), format: format.nullish() })
    .nullish(),
  service_tier: z.enum(['auto', 'standard_only']).optional(),
  inference_geo: z.string().nullish(),
  container: anything,
  context_management: anything,
  mcp_servers: anything,
  ...cache,
};

export const messagesRequest = z.strictObject({ model: z.string().min(1), ...members });
/** For Vertex: the model is in the path, the version in the body. */
export const vertexMessagesRequest = z.strictObject({
  anthropic_version: z.literal('vertex-2023-10-16', "Input should be 'vertex-2023-10-16'"),
  anthropic_beta: z.array(z.string()).optional(),
  ...members,
});

export type MessagesRequest = z.output<z.ZodObject<typeof members>>;
