import { written } from '../variant.ts';
import type { Call } from '../provider.ts';
import { readResponseFormat } from './chat-request.ts';
import { toRecord } from '../turns/json-value.ts';
import type { ResponseFormat, TurnRequest } from '../turns/turn-request.ts';

/** A JSON object of any shape: `json_object`, and `json_schema` without a schema. */
const isAnyJsonObject = (format: ResponseFormat | undefined): boolean =>
  format?.type === 'json_object' || (format?.type === 'json_schema' && format.schema === undefined);

/**
 * Whether a chat asks for a JSON object of any shape. For `Translation.asksForJsonInWords` of models that support a schema
 * but not any object: Claude's schemas need `additionalProperties: false` everywhere (platform.claude.com/docs "Structured
 * outputs"), and Converse accepts only a JSON schema (docs.aws.amazon.com/bedrock "OutputFormat").
 */
export function wantsAnyJsonObject(call: Call): boolean {
  if (call.operation !== 'chat') return false;
  const format = written(call, 'response_format');
  return format !== undefined && isAnyJsonObject(readResponseFormat(toRecord(JSON.parse(format))));
}

// A forced tool call would be stricter, but it excludes the caller's own tools and Claude's thinking.
const instruction = 'Answer with a single JSON object and nothing else: no text around it and no Markdown.';
const besideTools = `Unless you call a tool: ${instruction}`;

/** Returns the request with a final instruction to answer with a JSON object, if it needs that; otherwise unchanged. */
export function withJsonInWords(request: TurnRequest): TurnRequest {
  if (!isAnyJsonObject(request.responseFormat)) return request;
  const text = request.tools.length > 0 && request.toolChoice !== 'none' ? besideTools : instruction;
  return { ...request, system: [...request.system, { text, param: 'response_format', raw: {} }] };
}
