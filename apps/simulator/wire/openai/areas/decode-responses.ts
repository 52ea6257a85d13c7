import type { Tool, ToolUse } from '../../../model/choose-tools.ts';
import type { GenerateRequest } from '../../../model/generate.ts';
import { hashText } from '../../../model/hash.ts';
import { countTokens } from '../../../model/tokens.ts';
import {
  isObject,
  missing,
  optionalBoolean,
  optionalNumber,
  optionalText,
  requiredModel,
  wrongType,
} from '../checks.ts';
import type { Received } from '../../wire-format.ts';

type Json = Record<string, unknown>;

/** `echoed`: the members of the request that the answer repeats. */
export type Asked = { model: string; user: string | undefined; stream: boolean; echoed: Json; ask: GenerateRequest };

/** Checks and reads the parts of a Responses API request that the answer depends on; throws Refusal (400). */
export function decodeResponses({ json, text }: Received): Asked {
  const model = requiredModel(json);
  const { input } = json;
  if (input === undefined) return missing('input');
  if (typeof input !== 'string' && !Array.isArray(input))
    return wrongType('input', 'a string or an array of items', input);
  const items: unknown[] = typeof input === 'string' ? [{ role: 'user', content: input }] : input;
  const last = items.at(-1);
  const spokenAt = items.findLastIndex((item) => isObject(item) && item['role'] === 'user');
  const spoken = items[spokenAt];
  const isResult = (item: unknown): boolean => isObject(item) && resultTypes.has(item['type']);
  const tools = readTools(json['tools']);
  return {
    model,
    user: optionalText(json['user']),
    stream: optionalBoolean(json, 'stream'),
    echoed: echoOf(json),
    ask: {
      hash: hashText(`${model}\n${JSON.stringify([json['instructions'] ?? null, input])}`),
      lastUserText: isObject(spoken) ? asText(spoken['content']) : '',
      endsWithToolResult: isResult(last),
      toolResults: items.slice(spokenAt + 1).filter(isResult).length,
      rawBody: text,
      promptTokens: countTokens(JSON.stringify(input)) + countTokens(optionalText(json['instructions']) ?? ''),
      choiceCount: 1,
      tokensMax: optionalNumber(json, 'max_output_tokens', { min: 1, whole: true }),
      stop: [],
      tools,
      toolUse: readToolChoice(json['tool_choice']),
      parallelToolUse: json['parallel_tool_calls'] !== false,
      jsonSchema: readFormat(json['text']),
      think: isObject(json['reasoning']) && json['reasoning']['effort'] !== 'none',
    },
  };
}

const resultTypes: ReadonlySet<unknown> = new Set(['function_call_output', 'custom_tool_call_output']);

function readTools(tools: unknown): Tool[] {
  if (tools === undefined || tools === null) return [];
  if (!Array.isArray(tools)) return wrongType('tools', 'an array of objects', tools);
  return tools.flatMap((tool: unknown, index): Tool[] => {
    if (!isObject(tool)) return wrongType(`tools[${index}]`, 'an object', tool);
    const kind = tool['type'];
    if (kind !== 'function' && kind !== 'custom') return [];
    const name = optionalText(tool['name']) ?? missing(`tools[${index}].name`);
    return [{ name, kind, parameters: tool['parameters'] }];
  });
}

function readToolChoice(choice: unknown): ToolUse {
  if (choice === 'none' || choice === 'required') return choice;
  const name = isObject(choice) ? optionalText(choice['name']) : undefined;
  return name === undefined ? 'auto' : { name };
}

function readFormat(text: unknown): unknown {
  const format = isObject(text) ? text['format'] : undefined;
  if (!isObject(format) || format['type'] === 'text') return undefined;
  return format['type'] === 'json_schema' ? (format['schema'] ?? null) : null;
}

function asText(content: unknown): string {
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) return '';
  return content.map((part: unknown) => (isObject(part) ? (optionalText(part['text']) ?? '') : '')).join('\n');
}

function echoOf(json: Json): Json {
  const defaults = {
    instructions: null,
    max_output_tokens: null,
    metadata: {},
    parallel_tool_calls: true,
    previous_response_id: null,
    reasoning: { effort: null, summary: null },
    service_tier: 'default',
    store: true,
    temperature: 1,
    text: { format: { type: 'text' } },
    tool_choice: 'auto',
    tools: [],
    top_p: 1,
    truncation: 'disabled',
    user: null,
  };
  return Object.fromEntries(Object.entries(defaults).map(([name, value]) => [name, json[name] ?? value]));
}
