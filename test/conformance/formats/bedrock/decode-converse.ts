import { z } from 'zod';
import type { Tool, ToolUse } from '#apps/simulator/model/choose-tools.ts';
import { asksForJson, type GenerateRequest } from '#apps/simulator/model/generate.ts';
import { hashText } from '#apps/simulator/model/hash.ts';
import { countTokens } from '#apps/simulator/model/tokens.ts';
import { checkShape } from '#apps/simulator/wire/check-shape.ts';
import type { Received } from '#apps/simulator/wire/wire-format.ts';
import { refuse, refuseFlaw } from './refuse.ts';

type ConverseBlock = {
  text?: string;
  image?: unknown;
  document?: unknown;
  video?: unknown;
  toolResult?: unknown;
};
type ConverseMessage = { role: string; content: ConverseBlock[] };
/** The members that are read here. */
type ConverseRequest = {
  messages: ConverseMessage[];
  system?: { text?: string }[];
  inferenceConfig?: { maxTokens?: number; temperature?: number; stopSequences?: string[] };
  toolConfig?: {
    tools: { toolSpec?: { name: string; inputSchema: { json: unknown } } }[];
    toolChoice?: { auto?: object; any?: object; tool?: { name: string } };
  };
  additionalModelRequestFields?: Record<string, unknown>;
  outputConfig?: { textFormat?: { structure: { jsonSchema?: { schema: string } } } };
};

const tokensPerMessage = 4;
const tokensPerMedia = 85;
// The default output limit of a model, for the check of a thinking budget.
const maxTokensDefault = 4_096;
const thinking = z.object({
  type: z.enum(['enabled', 'adaptive', 'disabled']),
  budget_tokens: z.int().min(1024).optional(),
});

/** Reads a Converse request; throws Refusal with a ValidationException. */
export function decodeConverse(received: Received, model: string): GenerateRequest {
  const request = received.json as ConverseRequest;
  const { messages, inferenceConfig, outputConfig } = request;
  const tools = readTools(request);
  const last = messages.at(-1);
  const schema = outputConfig?.textFormat?.structure.jsonSchema?.schema;
  return {
    hash: hashText(`${model}\n${JSON.stringify(request.system ?? null)}\n${JSON.stringify(messages)}`),
    lastUserText: lastUserText(messages),
    endsWithToolResult: last?.content.some(({ toolResult }) => toolResult !== undefined) === true,
    rawBody: received.text,
    promptTokens: promptTokens(request),
    choiceCount: 1,
    tokensMax: inferenceConfig?.maxTokens,
    stop: inferenceConfig?.stopSequences ?? [],
    tools,
    toolUse: readToolChoice(request, tools),
    parallelToolUse: true,
    jsonSchema: schema === undefined ? (asksForJson(systemText(request)) ? null : undefined) : parseSchema(schema),
    think: readThinking(request),
  };
}

function readThinking({ additionalModelRequestFields: fields, inferenceConfig, toolConfig }: ConverseRequest): boolean {
  if (fields?.['thinking'] === undefined) return false;
  const { type, budget_tokens: budget } = checkShape(thinking, fields['thinking'], refuseFlaw);
  if (type === 'disabled') return false;
  if (type === 'enabled' && budget === undefined) refuse('thinking.enabled.budget_tokens: Field required');
  if ((budget ?? 0) >= (inferenceConfig?.maxTokens ?? maxTokensDefault)) {
    refuse('`max_tokens` must be greater than `thinking.budget_tokens`.');
  }
  if (inferenceConfig?.temperature !== undefined && inferenceConfig.temperature !== 1) {
    refuse('`temperature` may only be set to 1 when thinking is enabled.');
  }
  if (toolConfig?.toolChoice !== undefined && toolConfig.toolChoice.auto === undefined) {
    refuse('Thinking may not be enabled when tool_choice forces tool use.');
  }
  return true;
}

function readTools({ toolConfig }: ConverseRequest): Tool[] {
  return (toolConfig?.tools ?? []).flatMap(({ toolSpec }): Tool[] =>
    toolSpec === undefined ? [] : [{ name: toolSpec.name, kind: 'function', parameters: toolSpec.inputSchema.json }],
  );
}

function readToolChoice({ toolConfig }: ConverseRequest, tools: readonly Tool[]): ToolUse {
  const choice = toolConfig?.toolChoice;
  if (choice?.any !== undefined) return 'required';
  const { tool } = choice ?? {};
  if (tool === undefined) return 'auto';
  if (tools.some(({ name }) => name === tool.name)) return tool;
  return refuse(`The tool ${tool.name} of toolChoice is not defined in toolConfig.tools.`);
}

function parseSchema(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return refuse('outputConfig.textFormat.structure.jsonSchema.schema is not a valid JSON Schema.');
  }
}

function lastUserText(messages: readonly ConverseMessage[]): string {
  const spoken = messages.findLast(
    ({ role, content }) => role === 'user' && content.some(({ text }) => text !== undefined),
  );
  return (spoken?.content ?? []).flatMap(({ text }) => text ?? []).join('\n');
}

const systemText = ({ system }: ConverseRequest): string => (system ?? []).flatMap(({ text }) => text ?? []).join('\n');

function promptTokens(request: ConverseRequest): number {
  const { messages, toolConfig } = request;
  let tokens = countTokens(systemText(request));
  if (toolConfig !== undefined) tokens += countTokens(JSON.stringify(toolConfig));
  for (const { content } of messages) {
    tokens += tokensPerMessage;
    for (const { text, image, document, video, ...rest } of content) {
      if (text !== undefined) tokens += countTokens(text);
      else if (image ?? document ?? video) tokens += tokensPerMedia;
      else tokens += countTokens(JSON.stringify(rest));
    }
  }
  return tokens;
}
