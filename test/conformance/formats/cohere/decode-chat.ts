import type { Tool, ToolUse } from '#apps/simulator/model/choose-tools.ts';
import type { GenerateRequest } from '#apps/simulator/model/generate.ts';
import { hashText } from '#apps/simulator/model/hash.ts';
import { countTokens } from '#apps/simulator/model/tokens.ts';
import type { Flaw } from '#apps/simulator/wire/check-shape.ts';
import { Refusal, type Received } from '#apps/simulator/wire/wire-format.ts';

type Part = { text: string } | { document: unknown };
type Message = { role: string; content?: string | Part[] | null; tool_calls?: unknown[] | null };
/** The members that are read here. */
type ChatRequest = {
  model: string;
  messages: Message[];
  stream?: boolean;
  tools?: { function: { name: string; parameters: unknown } }[];
  documents?: unknown;
  response_format?: { type: string; json_schema?: unknown; schema?: unknown } | null;
  max_tokens?: number | null;
  stop_sequences?: string[] | null;
  seed?: number | null;
  logprobs?: boolean | null;
  tool_choice?: 'REQUIRED' | 'NONE' | null;
  thinking?: { type: string } | null;
};

export type Asked = { model: string; stream: boolean; logprobs: boolean; ask: GenerateRequest };

/** Reads a v2 chat request; throws Refusal (400). */
export function decodeChat(received: Received): Asked {
  const request = received.json as ChatRequest;
  const { model, messages, seed } = request;
  const tools = readTools(request);
  const last = messages.at(-1);
  const asked = messages.findLast(({ role }) => role === 'user');
  return {
    model,
    stream: request.stream === true,
    logprobs: request.logprobs === true,
    ask: {
      hash: hashText(`${model}\n${seed ?? ''}\n${JSON.stringify(messages)}`),
      lastUserText: asked === undefined ? '' : asText(asked),
      endsWithToolResult: last?.role === 'tool',
      rawBody: received.text,
      promptTokens: promptTokens(request),
      choiceCount: 1,
      tokensMax: request.max_tokens ?? undefined,
      stop: request.stop_sequences ?? [],
      tools,
      toolUse: readToolChoice(request, tools),
      parallelToolUse: true,
      jsonSchema: readFormat(request),
      think: /reasoning/.test(model) ? request.thinking?.type !== 'disabled' : request.thinking?.type === 'enabled',
    },
  };
}

function readTools({ tools }: ChatRequest): Tool[] {
  return (tools ?? []).map((tool) => ({
    name: tool.function.name,
    kind: 'function',
    parameters: tool.function.parameters,
  }));
}

function readToolChoice({ tool_choice: choice }: ChatRequest, tools: readonly Tool[]): ToolUse {
  if (choice === undefined || choice === null) return 'auto';
  if (tools.length === 0) refuse('invalid request: tool_choice can only be set when tools are specified.');
  return choice === 'REQUIRED' ? 'required' : 'none';
}

function readFormat({ response_format: format, tools, documents }: ChatRequest): unknown {
  if (format?.type !== 'json_object') return undefined;
  if ((tools ?? []).length > 0 || documents !== undefined) {
    refuse("invalid request: response_format of type 'json_object' is not supported with tools or documents.");
  }
  return format.json_schema ?? format.schema ?? null;
}

function promptTokens({ messages, tools }: ChatRequest): number {
  const counted = messages.map((message) => {
    const calls = message.tool_calls ? JSON.stringify(message.tool_calls) : '';
    return countTokens(asText(message)) + countTokens(calls);
  });
  return counted.reduce((sum, tokens) => sum + tokens, tools === undefined ? 0 : countTokens(JSON.stringify(tools)));
}

function asText({ content }: Message): string {
  if (typeof content === 'string') return content;
  return (content ?? []).map((part) => ('text' in part ? part.text : JSON.stringify(part))).join('\n');
}

export function refuse(message: string): never {
  throw new Refusal({ status: 400, message });
}

export function refuseFlaw({ kind, path, message }: Flaw): never {
  const name = path.join('.');
  if (kind === 'unknown') return refuse(`unknown field: parameter '${name}' is not a valid field`);
  if (kind === 'missing') return refuse(`invalid request: ${name} is required`);
  return refuse(`invalid request: ${name}: ${message}`);
}
