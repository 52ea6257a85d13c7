import { createHash } from 'node:crypto';
import { GatewayError } from '#libs/kernel/errors.ts';
import { type Json, asText, toRecord, toRecords } from '../turns/json-value.ts';
import { type Tool, unsupported } from '../turns/turn-request.ts';

/** How a client of the Responses API names a tool. A custom tool takes any text instead of JSON. */
export type ToolName = { name: string; namespace: string | null; isCustom: boolean };

type NamedTool = { tool: Tool; named: ToolName };

/** Providers refuse longer names. */
const nameLengthMax = 64;
const digestLength = 8;

/**
 * The name of a tool for providers that have no namespaces. It depends only on the two names, so that calls in the
 * conversation keep it.
 */
export function flatName(namespace: string | null, name: string): string {
  if (namespace === null || namespace === '') return name;
  const joined = `${namespace}${namespace.endsWith('__') ? '' : '__'}${name}`;
  if (joined.length <= nameLengthMax) return joined;
  const digest = createHash('sha256').update(joined).digest('hex').slice(0, digestLength);
  return `${joined.slice(0, nameLengthMax - digestLength - 1)}_${digest}`;
}

/** The tools of a request by the names that providers get. */
export type Tools = {
  tools: readonly Tool[];
  /** Finds the tool that a model called. A model can also call a tool that does not exist. */
  find: (flat: string) => ToolName;
};

/**
 * Reads the tools of a request, and those that Codex adds as items of the input (`additional_tools`). Tools in a namespace get
 * its name as well, and a custom tool becomes a function with one text. Adds ignored members and web search to `hints`. Throws
 * invalid_request for two tools with the same name, and `unsupported_parameter` for tools that run at OpenAI or that it
 * defines.
 */
export function readTools(body: Json, hints: string[] = []): Tools {
  const found = new Map<string, NamedTool>();
  const add = (list: unknown, at: string): void => {
    for (const [index, raw] of toRecords(list).entries()) {
      for (const one of readTool(raw, `${at}[${index}]`, hints)) addTool(found, one);
    }
  };
  add(body['tools'], 'tools');
  for (const [index, item] of toRecords(body['input']).entries()) {
    if (item['type'] === 'additional_tools') add(item['tools'], `input[${index}].tools`);
  }
  return {
    tools: [...found.values()].map(({ tool }) => tool),
    find: (flat) => found.get(flat)?.named ?? { name: flat, namespace: null, isCustom: false },
  };
}

/** A tool that is given again, as Codex does, replaces the earlier one. */
function addTool(found: Map<string, NamedTool>, one: NamedTool): void {
  const before = found.get(one.tool.name)?.named;
  const { name, namespace } = one.named;
  if (before !== undefined && (before.name !== name || before.namespace !== namespace)) {
    const message = `Invalid '${one.tool.param}': with its namespace, the tool has the same name as another one. Rename one of them.`;
    throw new GatewayError('invalid_request', 'invalid_value', message, { param: one.tool.param });
  }
  found.set(one.tool.name, one);
}

/** Codex offers this tool with every request. Without it, the model answers from what it knows; other hosted tools have the client's data. */
const isWebSearch = (type: unknown): boolean => typeof type === 'string' && type.startsWith('web_search');

function readTool(raw: Json, param: string, hints: string[]): NamedTool[] {
  if (isWebSearch(raw['type'])) {
    hints.push(param);
    return [];
  }
  if (raw['type'] !== 'namespace') return [readOne(raw, null, param, hints)];
  const namespace = asText(raw['name']) ?? '';
  return toRecords(raw['tools']).map((inner, index) => readOne(inner, namespace, `${param}.tools[${index}]`, hints));
}

/** Members of a tool that describe it. Any others change how OpenAI uses it, and are left out. */
const toolMembers = new Set(['type', 'name', 'description', 'parameters', 'strict', 'format']);

function readOne(raw: Json, namespace: string | null, param: string, hints: string[]): NamedTool {
  const { type, parameters, strict } = raw;
  if (type !== 'function' && type !== 'custom') throw unsupported(`${param}.type`, hostedTool(type));
  const others = Object.keys(raw).filter((name) => !toolMembers.has(name) && raw[name] !== null && raw[name] !== false);
  hints.push(...others.map((name) => `${param}.${name}`));
  const name = asText(raw['name']) ?? '';
  const isCustom = type === 'custom';
  const given = parameters === undefined || parameters === null ? undefined : toRecord(parameters);
  return {
    named: { name, namespace, isCustom },
    tool: {
      name: flatName(namespace, name),
      description: isCustom ? describeCustom(raw) : asText(raw['description']),
      parameters: isCustom ? inputSchema : given,
      strict: !isCustom && typeof strict === 'boolean' ? strict : undefined,
      param,
      raw,
    },
  };
}

const hostedTool = (type: unknown): string =>
  `only providers with the Responses API have the tool '${String(type).slice(0, 100)}'. Leave the tool out, or use such a provider`;

const inputSchema: Json = {
  type: 'object',
  properties: { input: { type: 'string', description: 'The whole input of the tool, as plain text.' } },
  required: ['input'],
  additionalProperties: false,
};

/** The description of a custom tool, with the grammar of its input, which other providers cannot enforce. */
function describeCustom(raw: Json): string | undefined {
  const description = asText(raw['description']);
  const { type, syntax, definition } = toRecord(raw['format']);
  if (type !== 'grammar' || typeof definition !== 'string') return description;
  const rule = `The input must match this grammar (${asText(syntax) ?? 'lark'}):\n${definition}`;
  return description === undefined ? rule : `${description}\n\n${rule}`;
}

/** The arguments of a function call for the input of a custom tool, and the reverse. */
export const wrapInput = (input: string): string => JSON.stringify({ input });

/** A model can call the function with something else, which is then its input. */
export function unwrapInput(written: string): string {
  try {
    const { input } = toRecord(JSON.parse(written));
    return typeof input === 'string' ? input : written;
  } catch {
    return written;
  }
}
