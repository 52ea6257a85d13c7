import type { Tool, ToolUse } from '#apps/simulator/model/choose-tools.ts';
import type { GenerateRequest } from '#apps/simulator/model/generate.ts';
import { hashText } from '#apps/simulator/model/hash.ts';
import { countTokens } from '#apps/simulator/model/tokens.ts';
import type { Received } from '#apps/simulator/wire/wire-format.ts';
import { camelCase } from './camel-case.ts';
import { refuse } from './google-error.ts';

/** `gemini`: the API with keys; `vertex`: the same API with tokens and additional members. */
export type Flavour = 'gemini' | 'vertex';
export type Asked = {
  model: string;
  flavour: Flavour;
  ask: GenerateRequest;
  showThoughts: boolean;
  /** Gemini 3 signs its parts and requires the signatures of its calls. */
  signs: boolean;
  /** undefined: no log probabilities; otherwise the number of alternatives. */
  logprobs: number | undefined;
};

type Part = { text?: string; inlineData?: unknown; fileData?: unknown; functionResponse?: unknown };
type Content = { role?: string; parts: Part[] };
type Config = {
  stopSequences?: string[];
  responseMimeType?: string;
  responseSchema?: unknown;
  responseJsonSchema?: unknown;
  candidateCount?: number;
  maxOutputTokens?: number;
  seed?: number;
  responseLogprobs?: boolean;
  logprobs?: number;
  thinkingConfig?: { includeThoughts?: boolean; thinkingBudget?: number; thinkingLevel?: string };
};
/** The members that are read here. */
type GenerateContentRequest = {
  contents: Content[];
  systemInstruction?: Content;
  tools?: { functionDeclarations?: { name: string; parameters?: unknown; parametersJsonSchema?: unknown }[] }[];
  toolConfig?: { functionCallingConfig?: { mode?: string; allowedFunctionNames?: string[] } };
  generationConfig?: Config;
};

const tokensPerMedia = 258;

/** Reads a generateContent request; throws Refusal (400) with Google's wording. */
export function decodeGenerate(received: Received, model: string, flavour: Flavour): Asked {
  const request = camelCase(received.json) as GenerateContentRequest;
  const signs = model.slice(model.lastIndexOf('/') + 1).startsWith('gemini-3');
  const { generationConfig: config = {}, contents } = request;
  const tools = readTools(request);
  const logprobs = config.logprobs;
  if (logprobs !== undefined && config.responseLogprobs !== true) {
    refuse('Logprobs is only supported when response_logprobs is enabled.');
  }
  const spoken = contents.findLast(
    ({ role, parts }) => role !== 'model' && parts.some(({ text }) => text !== undefined),
  );
  return {
    model,
    flavour,
    showThoughts: config.thinkingConfig?.includeThoughts === true,
    signs,
    logprobs: config.responseLogprobs === true ? (logprobs ?? 0) : undefined,
    ask: {
      hash: hashText(
        `${model}\n${config.seed ?? ''}\n${JSON.stringify([request.systemInstruction ?? null, contents])}`,
      ),
      lastUserText: spoken === undefined ? '' : asText(spoken),
      endsWithToolResult:
        contents.at(-1)?.parts.some(({ functionResponse }) => functionResponse !== undefined) === true,
      rawBody: received.text,
      promptTokens: promptTokens(request),
      choiceCount: config.candidateCount ?? 1,
      tokensMax: config.maxOutputTokens,
      stop: config.stopSequences ?? [],
      tools,
      toolUse: readToolChoice(request, tools),
      parallelToolUse: true,
      jsonSchema: readFormat(config, tools.length > 0, signs),
      think: readThinking(config, model),
    },
  };
}

function readThinking({ thinkingConfig }: Config, model: string): boolean {
  const { thinkingBudget: budget, thinkingLevel: level } = thinkingConfig ?? {};
  const always = /gemini-3|gemini-2\.5-pro/.test(model);
  if (budget !== undefined && level !== undefined)
    refuse('You can only set only one of thinking budget and thinking level.');
  if (level !== undefined && /gemini-2/.test(model)) refuse('Thinking level is not supported for this model.');
  if (budget === 0 && always) refuse('Budget 0 is invalid. This model only works in thinking mode.');
  if (budget === 0) return false;
  return (
    always ||
    /gemini-2\.5/.test(model) ||
    budget !== undefined ||
    level !== undefined ||
    thinkingConfig?.includeThoughts === true
  );
}

/** undefined: text; null: any JSON; otherwise the schema, with its types in lower case. */
function readFormat(
  { responseMimeType: type, responseSchema, responseJsonSchema }: Config,
  hasTools: boolean,
  signs: boolean,
): unknown {
  const schema = responseSchema ?? responseJsonSchema;
  if (responseSchema !== undefined && responseJsonSchema !== undefined) {
    refuse('* GenerateContentRequest.generation_config: response_schema and response_json_schema cannot both be set.');
  }
  if (type !== undefined && !['text/plain', 'application/json', 'text/x.enum'].includes(type)) {
    refuse(
      `* GenerateContentRequest.generation_config.response_mime_type: allowed mimetypes are \`text/plain\`, \`application/json\`, \`application/xml\`, \`application/yaml\` and \`text/x.enum\`.`,
    );
  }
  if (type === undefined || type === 'text/plain') {
    if (schema !== undefined)
      refuse(
        '* GenerateContentRequest.generation_config.response_schema: only allowed for response mime types `application/json` and `text/x.enum`',
      );
    return undefined;
  }
  if (hasTools && !signs) refuse("Function calling with a response mime type: 'application/json' is unsupported");
  return schema === undefined ? null : lowerTypes(schema);
}

function readTools({ tools }: GenerateContentRequest): Tool[] {
  const declarations = (tools ?? []).flatMap(({ functionDeclarations }) => functionDeclarations ?? []);
  const names = new Set<string>();
  return declarations.map(({ name, parameters, parametersJsonSchema }) => {
    if (parameters !== undefined && parametersJsonSchema !== undefined)
      refuse('parameters and parameters_json_schema cannot both be set.');
    if (names.has(name)) refuse(`Duplicate function declaration found: ${name}`);
    names.add(name);
    return { name, kind: 'function', parameters: lowerTypes(parameters ?? parametersJsonSchema) };
  });
}

function readToolChoice({ toolConfig }: GenerateContentRequest, tools: readonly Tool[]): ToolUse {
  const { mode = 'AUTO', allowedFunctionNames: allowed } = toolConfig?.functionCallingConfig ?? {};
  const upper = mode.toUpperCase();
  if (allowed !== undefined && upper !== 'ANY' && upper !== 'VALIDATED')
    refuse('Allowed function names should only be set when function calling mode is ANY.');
  if (upper === 'NONE') return 'none';
  if (upper !== 'ANY') return 'auto';
  if (tools.length === 0) refuse('Function calling config is set without function_declarations.');
  const unknown = allowed?.find((name) => !tools.some((tool) => tool.name === name));
  if (unknown !== undefined)
    refuse(`\`allowed_function_names\` should be a subset of \`function_declarations\`. Invalid name: ${unknown}`);
  const [only] = allowed ?? [];
  return allowed?.length === 1 && only !== undefined ? { name: only } : 'required';
}

/** Converts types (`STRING` to `string`) at all levels. */
function lowerTypes(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map((item) => lowerTypes(item));
  if (typeof schema !== 'object' || schema === null) return schema;
  const members = Object.entries(schema).map(([name, value]) => [
    name,
    name === 'type' && typeof value === 'string' ? value.toLowerCase() : lowerTypes(value),
  ]);
  return Object.fromEntries(members) as unknown;
}

function promptTokens({ contents, systemInstruction, tools }: GenerateContentRequest): number {
  let tokens = tools === undefined ? 0 : countTokens(JSON.stringify(tools));
  for (const content of systemInstruction === undefined ? contents : [systemInstruction, ...contents]) {
    for (const part of content.parts) {
      if (part.text !== undefined) tokens += countTokens(part.text);
      else if (part.inlineData ?? part.fileData) tokens += tokensPerMedia;
      else tokens += countTokens(JSON.stringify(part));
    }
  }
  return tokens;
}

function asText({ parts }: Content): string {
  return parts.flatMap(({ text }) => text ?? []).join('\n');
}
