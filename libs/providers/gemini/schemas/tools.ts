import { bothSpellings } from '../generation-config.ts';
import { toGeminiSchema } from './schema.ts';
import { type Json, compact, toRecord } from '../../turns/json-value.ts';
import type { Tool, TurnRequest } from '../../turns/turn-request.ts';

/** Requests the arguments of calls in pieces, from models that support it (Gemini 3 and later on Vertex AI). */
export const argumentStreaming: readonly string[] = bothSpellings(['stream_function_call_arguments']);

/**
 * Tools as function declarations, and the tool choice. Schema keywords that were left out are added to `dropped`, and so is
 * `strict` if calls are optional: Gemini enforces the schema only for a forced call.
 */
export function toGeminiTools(
  request: TurnRequest,
  stream: boolean,
  dropped: string[],
): { tools?: Json[]; toolConfig?: Json } {
  const { tools, toolChoice } = request;
  const isForced = toolChoice === 'required' || typeof toolChoice === 'object';
  if (tools.length === 0) {
    if (isForced) dropped.push('tool_choice');
    return {};
  }
  const functionDeclarations = tools.map((tool) => {
    if (tool.strict === true && !isForced) dropped.push(`${functionParam(request, tool)}.strict`);
    return declarationOf(tool, `${functionParam(request, tool)}.parameters`, dropped);
  });
  // Gemini rejects it for a call that is not streamed.
  const inPieces = stream && argumentStreaming.some((name) => request.body[name] === true);
  const functionCallingConfig = {
    ...(toolChoice === undefined ? {} : modeOf(toolChoice)),
    ...(inPieces ? { streamFunctionCallArguments: true } : {}),
  };
  return {
    tools: [{ functionDeclarations }],
    ...(toolChoice === undefined && !inPieces ? {} : { toolConfig: { functionCallingConfig } }),
  };
}

const functionParam = ({ usesFunctions }: TurnRequest, { param }: Tool): string =>
  usesFunctions ? param : `${param}.function`;

function modeOf(choice: NonNullable<TurnRequest['toolChoice']>): Json {
  if (typeof choice === 'object') return { mode: 'ANY', allowedFunctionNames: [choice.name] };
  return { mode: { auto: 'AUTO', none: 'NONE', required: 'ANY' }[choice] };
}

function declarationOf({ name, description, parameters }: Tool, param: string, dropped: string[]): Json {
  // Gemini rejects an object without properties, so the parameters are left out.
  const isEmpty = parameters === undefined || isWithoutParameters(parameters);
  if (isEmpty) return compact({ name, description });
  const { form, schema, lost } = toGeminiSchema(parameters, param);
  dropped.push(...lost.map((keyword) => `${param}.${keyword}`));
  return compact({ name, description, [form === 'openapi' ? 'parameters' : 'parametersJsonSchema']: schema });
}

function isWithoutParameters(schema: Json): boolean {
  const { type, properties, additionalProperties: more, ...rest } = schema;
  const isOpen = more === true || Object.keys(toRecord(more)).length > 0;
  const says = Object.keys(rest).some((keyword) => !['$schema', 'required', 'title', 'description'].includes(keyword));
  return (
    (type === undefined || type === 'object') && Object.keys(toRecord(properties)).length === 0 && !isOpen && !says
  );
}
