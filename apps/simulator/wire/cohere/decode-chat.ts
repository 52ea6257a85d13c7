import type { Tool, ToolUse } from '../../model/choose-tools.ts';
import type { GenerateRequest } from '../../model/generate.ts';
import { hashText } from '../../model/hash.ts';
import { countTokens } from '../../model/tokens.ts';
import { checkShape, type Flaw } from '../check-shape.ts';
import { Refusal, type Received } from '../wire-format.ts';
import { chatRequest, type ChatRequest, type Message } from './chat-schema.ts';

export type Asked = { model: string; stream: boolean; logprobs: boolean; ask: GenerateRequest };

/** Checks and reads a v2 chat request; throws Refusal (400). */
export function decodeChat(received: Received): Asked {
  const request = checkShape(chatRequest, received.json, refuseFlaw);
  checkTurns(request.messages);
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
      lastUserText: asked === undefined ? '' : textOf(asked),
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

/** The results of a turn's tools follow it, each with one of its ids, and all of them. */
function checkTurns(messages: readonly Message[]): void {
  let open: string[] = [];
  for (const [index, message] of messages.entries()) {
    if (message.role === 'tool') {
      const at = open.indexOf(message.tool_call_id);
      if (at === -1) {
        refuse(
          `invalid request: tool_call_id '${message.tool_call_id}' of messages[${index}] does not match any tool call of the preceding assistant message.`,
        );
      }
      open.splice(at, 1);
      continue;
    }
    if (open.length > 0)
      refuse(`invalid request: tool calls ${open.join(', ')} have no tool message before messages[${index}].`);
    if (message.role === 'assistant') {
      const calls = message.tool_calls ?? [];
      if (calls.length === 0 && isEmpty(message)) {
        refuse(`invalid request: messages[${index}] must have content or tool_calls.`);
      }
      open = calls.map(({ id }) => id);
      if (new Set(open).size < open.length)
        refuse(`invalid request: tool call ids of messages[${index}] are not unique.`);
    }
  }
  if (open.length > 0) refuse(`invalid request: tool calls ${open.join(', ')} have no tool message.`);
}

function isEmpty(message: Extract<Message, { role: 'assistant' }>): boolean {
  return (message.content ?? '').length === 0;
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
    const calls = message.role === 'assistant' && message.tool_calls ? JSON.stringify(message.tool_calls) : '';
    return countTokens(textOf(message)) + countTokens(calls);
  });
  return counted.reduce((sum, tokens) => sum + tokens, tools === undefined ? 0 : countTokens(JSON.stringify(tools)));
}

function textOf({ content }: Message): string {
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
