import { Refusal } from '../wire-format.ts';

type Json = Record<string, unknown>;

export function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** A 400 with OpenAI's wording. */
export function refuse(message: string, param: string | null, code: string | null): never {
  throw new Refusal({ status: 400, message, type: 'invalid_request_error', param, code });
}

export function missing(param: string): never {
  return refuse(`Missing required parameter: '${param}'.`, param, 'missing_required_parameter');
}

/** Rejects a value of the wrong JSON type; `expected` includes its article, as in "a string" or "an array of objects". */
export function wrongType(param: string, expected: string, value: unknown): never {
  return refuse(
    `Invalid type for '${param}': expected ${expected}, but got ${kindOf(value)} instead.`,
    param,
    'invalid_type',
  );
}

export function tooLong(param: string, length: number, lengthMax: number): never {
  return refuse(
    `Invalid '${param}': array too long. Expected an array with maximum length ${lengthMax}, but got an array with length ${length} instead.`,
    param,
    'array_above_max_length',
  );
}

/** A list of token numbers, a form that prompts and inputs can have. */
export function isTokens(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((token) => Number.isInteger(token));
}

function kindOf(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return value.length === 0 ? 'an empty array' : 'an array';
  if (typeof value === 'object') return 'an object';
  if (typeof value === 'number') return Number.isInteger(value) ? 'an integer' : 'a decimal';
  return `a ${typeof value}`;
}

type Bounds = { min?: number; max?: number; whole?: boolean };

/** An optional number: undefined if absent or null; throws Refusal if out of bounds. */
export function optionalNumber(body: Json, param: string, bounds: Bounds): number | undefined {
  const value = body[param];
  if (value === undefined || value === null) return undefined;
  const kind = bounds.whole === true ? 'integer' : 'decimal';
  if (typeof value !== 'number' || (bounds.whole === true && !Number.isInteger(value))) {
    return wrongType(param, bounds.whole === true ? 'an integer' : 'a decimal', value);
  }
  const { min = -Infinity, max = Infinity } = bounds;
  if (value >= min && value <= max) return value;
  const [side, end, sign, limit] =
    value < min ? (['below', 'minimum', '>=', min] as const) : (['above', 'maximum', '<=', max] as const);
  return refuse(
    `Invalid '${param}': ${kind} ${side} ${end} value. Expected a value ${sign} ${limit}, but got ${value} instead.`,
    param,
    `${kind}_${side}_${end === 'minimum' ? 'min' : 'max'}_value`,
  );
}

export function optionalBoolean(body: Json, param: string): boolean {
  const value = body[param];
  if (value === undefined || value === null) return false;
  return typeof value === 'boolean' ? value : wrongType(param, 'a boolean', value);
}

/** `model` is required; any name is served. */
export function requiredModel(body: Json): string {
  const model = body['model'];
  if (model === undefined || model === null || model === '') {
    return refuse('you must provide a model parameter', 'model', 'missing_required_parameter');
  }
  return typeof model === 'string' ? model : wrongType('model', 'a string', model);
}

/** `stop`: a string or one to four of them. */
export function stopSequences(body: Json): readonly string[] {
  const stop = body['stop'];
  if (stop === undefined || stop === null) return [];
  if (typeof stop === 'string') return [stop];
  if (!Array.isArray(stop) || !stop.every((sequence) => typeof sequence === 'string')) {
    return wrongType('stop', 'a string or an array of strings', stop);
  }
  if (stop.length <= 4) return stop;
  return tooLong('stop', stop.length, 4);
}

/** `stream` and whether the usage chunk was requested; `stream_options` without `stream` is rejected. */
export function streamOptions(body: Json): { stream: boolean; includeUsage: boolean; obfuscate: boolean } {
  const stream = optionalBoolean(body, 'stream');
  const options = body['stream_options'];
  if (options === undefined || options === null) return { stream, includeUsage: false, obfuscate: true };
  if (!isObject(options)) return wrongType('stream_options', 'an object', options);
  if (!stream) {
    return refuse("The 'stream_options' parameter is only allowed when 'stream' is enabled.", 'stream_options', null);
  }
  return {
    stream,
    includeUsage: options['include_usage'] === true,
    obfuscate: options['include_obfuscation'] !== false,
  };
}

/** The limits that chat and text completions share. */
export function checkSampling(body: Json): void {
  optionalNumber(body, 'temperature', { min: 0, max: 2 });
  optionalNumber(body, 'top_p', { min: 0, max: 1 });
  optionalNumber(body, 'frequency_penalty', { min: -2, max: 2 });
  optionalNumber(body, 'presence_penalty', { min: -2, max: 2 });
  optionalNumber(body, 'seed', { whole: true });
}

export function optionalText(value: unknown): string | undefined {
  return typeof value === 'string' ? value : undefined;
}
