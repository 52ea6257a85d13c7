import { isClosedSchema } from '../turns/closed-schema.ts';
import { type Json, asNumber, asText, compact, toRecord } from '../turns/json-value.ts';
import {
  type ResponseFormat,
  type Tool,
  type ToolChoice,
  type TurnRequest,
  unsupported,
} from '../turns/turn-request.ts';
import { decodeContents } from './decode-contents.ts';
import { listOf, otherMembers, readMember } from './member.ts';
import { toJsonSchema } from './open-api-schema.ts';

/** Members that are read into others, or that the core reads. */
const consumed = new Set([
  'model',
  'stream',
  'contents',
  'systemInstruction',
  'tools',
  'toolConfig',
  'generationConfig',
  'cachedContent',
]);

const consumedConfig = new Set([
  'temperature',
  'topP',
  'topK',
  'maxOutputTokens',
  'stopSequences',
  'responseMimeType',
  'responseSchema',
  'responseJsonSchema',
  'responseModalities',
  'seed',
  'presencePenalty',
  'frequencyPenalty',
  'candidateCount',
  'responseLogprobs',
  'logprobs',
  'thinkingConfig',
]);

/**
 * Reads a request of Google's generateContent (ai.google.dev/api/generate-content) for a provider that does not have that
 * API. Throws like `decodeContents`, and `unsupported_parameter` for tools that run at Google, its cached content, and
 * answers that are not text.
 */
export function decodeGenerateRequest(body: Json, model: string): TurnRequest {
  if (readMember(body, 'cachedContent') !== undefined) {
    throw unsupported('cachedContent', 'only Google has the content. Send it in contents, or use a Gemini model');
  }
  const conversation = decodeContents(body);
  const config = toRecord(readMember(body, 'generationConfig'));
  refuseOtherAnswers(config);
  const hints = [
    ...conversation.hints,
    ...otherMembers(config, consumedConfig).map((name) => `generationConfig.${name}`),
  ];
  const { tools, toolChoice } = chooseTools(readTools(body, hints), body);
  const numberOf = (name: string): number | undefined => asNumber(readMember(config, name));
  const stop = listOf(readMember(config, 'stopSequences')).filter((text) => typeof text === 'string');
  const parameters = {
    maxTokens: numberOf('maxOutputTokens'),
    temperature: numberOf('temperature'),
    topP: numberOf('topP'),
    seed: numberOf('seed'),
    frequencyPenalty: numberOf('frequencyPenalty'),
    presencePenalty: numberOf('presencePenalty'),
    n: numberOf('candidateCount'),
    topLogprobs: numberOf('logprobs'),
    reasoningEffort: asText(body['reasoning_effort']) ?? readEffort(config),
    responseFormat: readFormat(config),
  };
  return {
    ...conversation,
    ...parameters,
    hints,
    model,
    tools,
    toolChoice,
    stop,
    parallelToolCalls: undefined,
    logprobs: readMember(config, 'responseLogprobs') === true,
    user: asText(body['user']),
    usesFunctions: false,
    body: compact({
      ...Object.fromEntries(otherMembers(body, consumed).map((name) => [name, readMember(body, name) ?? body[name]])),
      max_tokens: parameters.maxTokens,
      temperature: parameters.temperature,
      top_p: parameters.topP,
      top_k: numberOf('topK'),
      seed: parameters.seed,
      frequency_penalty: parameters.frequencyPenalty,
      presence_penalty: parameters.presencePenalty,
      n: parameters.n,
      top_logprobs: parameters.topLogprobs,
      reasoning_effort: parameters.reasoningEffort,
      stop: stop.length > 0 ? stop : undefined,
      tools: tools.length > 0 ? tools : undefined,
      tool_choice: toolChoice,
      response_format: parameters.responseFormat,
    }),
  };
}

/** Throws for images and speech, which no other dialect's answer has a place for. */
function refuseOtherAnswers(config: Json): void {
  const modalities = listOf(readMember(config, 'responseModalities'));
  if (modalities.every((kind) => /^(text|modality_unspecified)$/i.test(String(kind)))) return;
  const why = 'this model only returns text. Leave it out, or use a Gemini model';
  throw unsupported('generationConfig.responseModalities', why);
}

function readTools(body: Json, hints: string[]): Tool[] {
  return listOf(body['tools']).flatMap((value, index) => {
    const { functionDeclarations: _camel, function_declarations: _snake, ...others } = toRecord(value);
    const param = `tools[${index}]`;
    for (const name of otherMembers(others, new Set())) {
      const why = `it runs at Google. Leave the tool out, or use a Gemini model`;
      throw unsupported(`${param}.${name.slice(0, 100)}`, why);
    }
    const declarations = listOf(readMember(toRecord(value), 'functionDeclarations'));
    return declarations.map((raw, position) =>
      readDeclaration(toRecord(raw), `${param}.functionDeclarations[${position}]`, hints),
    );
  });
}

const declared = new Set([
  'name',
  'description',
  'parameters',
  'parametersJsonSchema',
  'response',
  'responseJsonSchema',
]);

function readDeclaration(raw: Json, param: string, hints: string[]): Tool {
  hints.push(...otherMembers(raw, declared).map((name) => `${param}.${name}`));
  const jsonSchema = readMember(raw, 'parametersJsonSchema');
  const openApi = raw['parameters'] ?? undefined;
  return {
    name: asText(raw['name']) ?? '',
    description: asText(raw['description']),
    parameters:
      jsonSchema !== undefined
        ? toRecord(jsonSchema)
        : openApi === undefined
          ? undefined
          : toJsonSchema(toRecord(openApi), `${param}.parameters`),
    strict: undefined,
    param,
    raw: {},
  };
}

/** Applies `functionCallingConfig`: with several allowed names, the other tools are left out. */
function chooseTools(
  tools: readonly Tool[],
  body: Json,
): { tools: readonly Tool[]; toolChoice: ToolChoice | undefined } {
  const config = toRecord(readMember(toRecord(readMember(body, 'toolConfig')), 'functionCallingConfig'));
  const mode = asText(config['mode'])?.toUpperCase();
  const names = new Set(listOf(readMember(config, 'allowedFunctionNames')));
  const allowed = names.size === 0 ? tools : tools.filter(({ name }) => names.has(name));
  switch (mode) {
    case 'NONE':
      return { tools, toolChoice: 'none' };
    case 'ANY': {
      const [only, ...more] = names.size === 0 ? [] : allowed;
      if (only !== undefined && more.length === 0) return { tools, toolChoice: { name: only.name } };
      return { tools: allowed, toolChoice: 'required' };
    }
    case 'AUTO':
      return { tools, toolChoice: 'auto' };
    case 'VALIDATED':
      return { tools: allowed, toolChoice: 'auto' };
    case undefined:
    default:
      return { tools, toolChoice: undefined };
  }
}

function readFormat(config: Json): ResponseFormat | undefined {
  const type = asText(readMember(config, 'responseMimeType'))?.toLowerCase();
  const openApi = readMember(config, 'responseSchema');
  const jsonSchema = readMember(config, 'responseJsonSchema');
  if (type === 'text/x.enum') {
    const why = 'only Gemini has it. Use application/json with an enum in the schema';
    throw unsupported('generationConfig.responseMimeType', why);
  }
  if (type !== 'application/json') return undefined;
  if (openApi === undefined && jsonSchema === undefined) return { type: 'json_object' };
  const schema =
    jsonSchema === undefined
      ? toJsonSchema(toRecord(openApi), 'generationConfig.responseSchema')
      : toRecord(jsonSchema);
  // Google always holds its models to a schema; others do that only if it fits their strict mode.
  const strict = isClosedSchema(schema) ? true : undefined;
  return { type: 'json_schema', name: 'answer', description: undefined, schema, strict };
}

/** The largest token budget of each effort, as Google documents them (ai.google.dev/gemini-api/docs/openai#thinking). */
const budgets = [
  [0, 'none'],
  [1_024, 'low'],
  [8_192, 'medium'],
  [Number.POSITIVE_INFINITY, 'high'],
] as const;

/** A level or a budget as an effort; undefined if the model decides (-1). */
function readEffort(config: Json): string | undefined {
  const thinking = toRecord(readMember(config, 'thinkingConfig'));
  const level = asText(readMember(thinking, 'thinkingLevel'))?.toLowerCase();
  if (level !== undefined && level !== 'thinking_level_unspecified') return level;
  const budget = asNumber(readMember(thinking, 'thinkingBudget'));
  if (budget === undefined || budget < 0) return undefined;
  return budgets.find(([most]) => budget <= most)?.[1];
}
