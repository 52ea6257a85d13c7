import { z } from 'zod';
import { chatBreach } from './body-rules.ts';
import { outputBound } from './output-bounds.ts';
import { addBreach, anyObject, decimal, int64, integer } from '../scalars.ts';

// POST /chat/completions. Only the bounds, types and enums of OpenAI's API reference are enforced (CALL-1): defaults
// are not filled in, unknown members are passed on, and the provider checks everything that the reference leaves open
// (types of content parts, extra fields).

const functionName = () =>
  z
    .string()
    .max(64)
    .regex(/^[a-zA-Z0-9_-]+$/);

// The API reference gives text for system messages; the official SDKs also send parts for every role (CALL-4).
const ContentPart = z.looseObject({
  type: z.string(),
  text: z.string().nullish(),
  image_url: z.looseObject({ url: z.string() }).nullish(),
});
const Content = z.union([z.string(), z.array(ContentPart).min(1)]);

const ToolCall = z.looseObject({
  id: z.string(),
  type: z.literal('function'),
  function: z.looseObject({ name: z.string(), arguments: z.string() }),
});
const FunctionCall = z.looseObject({ name: z.string(), arguments: z.string() });

const Message = z.discriminatedUnion('role', [
  z.looseObject({ role: z.literal('system'), content: Content, name: z.string().nullish() }),
  z.looseObject({ role: z.literal('developer'), content: Content, name: z.string().nullish() }),
  z.looseObject({ role: z.literal('user'), content: Content, name: z.string().nullish() }),
  z.looseObject({
    role: z.literal('assistant'),
    content: Content.nullish(),
    name: z.string().nullish(),
    tool_calls: z.array(ToolCall).nullish(),
    function_call: FunctionCall.nullish(),
  }),
  z.looseObject({ role: z.literal('tool'), content: Content, tool_call_id: z.string() }),
  z.looseObject({ role: z.literal('function'), content: Content.nullable(), name: z.string() }),
]);

const FunctionDefinition = z.looseObject({
  name: functionName(),
  description: z.string().nullish(),
  parameters: anyObject().nullish(),
});

const Tool = z.looseObject({
  type: z.literal('function'),
  function: FunctionDefinition.extend({ strict: z.boolean().nullish() }),
});

const NamedTool = z.looseObject({ type: z.literal('function'), function: z.looseObject({ name: z.string() }) });

const ResponseFormat = z.discriminatedUnion('type', [
  z.looseObject({ type: z.literal('text') }),
  z.looseObject({ type: z.literal('json_object') }),
  z.looseObject({
    type: z.literal('json_schema'),
    json_schema: z.looseObject({
      name: functionName(),
      description: z.string().nullish(),
      schema: anyObject().nullish(),
      strict: z.boolean().nullish(),
    }),
  }),
]);

export const StreamOptions = z.looseObject({ include_usage: z.boolean().nullish() });

export const ChatCompletionRequest = z
  .looseObject({
    messages: z.array(Message).min(1),
    model: z.string(),
    frequency_penalty: decimal(-2, 2).nullish(),
    logit_bias: z.record(z.string(), integer({ min: -100, max: 100 })).nullish(),
    logprobs: z.boolean().nullish(),
    top_logprobs: integer({ min: 0, max: 20 }).nullish(),
    max_tokens: outputBound(),
    max_completion_tokens: outputBound(),
    n: integer({ min: 1, max: 128 }).nullish(),
    presence_penalty: decimal(-2, 2).nullish(),
    response_format: ResponseFormat.nullish(),
    seed: int64().nullish(),
    stop: z.union([z.string(), z.array(z.string()).min(1).max(4)]).nullish(),
    stream: z.boolean().nullish(),
    stream_options: StreamOptions.nullish(),
    thinking: z
      .looseObject({ type: z.enum(['enabled', 'disabled']), budget_tokens: integer({ min: 1 }).nullish() })
      .nullish(),
    temperature: decimal(0, 2).nullish(),
    top_p: decimal(0, 1).nullish(),
    tools: z.array(Tool).max(128).nullish(),
    tool_choice: z.union([z.enum(['none', 'auto', 'required']), NamedTool]).nullish(),
    parallel_tool_calls: z.boolean().nullish(),
    user: z.string().nullish(),
    function_call: z.union([z.enum(['none', 'auto']), z.looseObject({ name: z.string() })]).nullish(),
    functions: z.array(FunctionDefinition).min(1).max(128).nullish(),
  })
  .check((context) => {
    const breach = chatBreach(context.value);
    if (breach !== null) addBreach(context, breach);
  });
export type ChatCompletionRequest = z.output<typeof ChatCompletionRequest>;

// Answers are described for readers of the OpenAPI document; they are never checked against these on the way out.

const finishReason = z.enum(['stop', 'length', 'tool_calls', 'content_filter', 'function_call']);

const TokenLogprob = z.looseObject({
  token: z.string(),
  logprob: z.number(),
  bytes: z.array(z.int()).nullable(),
  top_logprobs: z.array(z.looseObject({ token: z.string(), logprob: z.number(), bytes: z.array(z.int()).nullable() })),
});
const Logprobs = z.looseObject({ content: z.array(TokenLogprob).nullable() });

export const Usage = z.looseObject({
  prompt_tokens: z.int(),
  completion_tokens: z.int(),
  total_tokens: z.int(),
  completion_tokens_details: anyObject().nullish(),
  prompt_tokens_details: anyObject().nullish(),
});

export const ChatCompletionResponse = z.looseObject({
  id: z.string(),
  object: z.literal('chat.completion'),
  created: z.int(),
  model: z.string(),
  choices: z.array(
    z.looseObject({
      index: z.int(),
      finish_reason: finishReason,
      message: z.looseObject({
        role: z.literal('assistant'),
        content: z.string().nullable(),
        tool_calls: z.array(ToolCall).optional(),
        function_call: FunctionCall.nullish(),
        content_blocks: z.array(z.looseObject({ type: z.string() })).nullish(),
      }),
      logprobs: Logprobs.nullable(),
    }),
  ),
  system_fingerprint: z.string().nullish(),
  usage: Usage.optional(),
});
