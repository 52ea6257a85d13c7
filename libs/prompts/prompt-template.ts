import { GatewayError } from '#libs/kernel/errors.ts';
import { compileTemplate, type Template } from './compile-template.ts';
import type { Renderer } from './render-template.ts';

/** JSON in which texts are templates. */
type Rendered = { kind: 'constant'; value: unknown } | { kind: 'text'; template: Template };
type Message = Rendered | { kind: 'list'; items: Message[] } | { kind: 'object'; members: [string, Message][] };

/** A prompt's `string`, compiled: a text for the completions endpoint, or a message list for chat. */
export type PromptTemplate = {
  operation: 'chat' | 'completions';
  partials: readonly string[];
  /** Returns the messages, or the text. Throws like the renderer. */
  render(renderer: Renderer): unknown;
};

const messagesMax = 1_000;
const depthMax = 32;

/** Names of members whose texts describe a message, but are not its content. */
const structural: ReadonlySet<string> = new Set(['role', 'type']);

/**
 * Compiles a prompt. A message list is parsed first and each of its texts is a separate template, so that no variable
 * can change the structure, whatever quotes it contains. Throws invalid_request (`invalid_template`) with the position.
 */
export function compilePrompt(text: string): PromptTemplate {
  const messages = parseMessages(text);
  const partials = new Set<string>();
  const compile = (source: string, where: string): Template => {
    const template = compileTemplate(source, where);
    for (const name of template.partials) partials.add(name);
    return template;
  };
  if (messages === null) {
    const template = compile(text, 'string');
    return { operation: 'completions', partials: [...partials], render: (renderer) => renderer.render(template) };
  }

  const toMessage = (value: unknown, where: string, depth: number): Message => {
    if (depth > depthMax) throw refused(`a message is nested more than ${depthMax} levels deep, at ${where}`);
    if (typeof value === 'string' && value.includes('{{')) return { kind: 'text', template: compile(value, where) };
    if (Array.isArray(value)) {
      return { kind: 'list', items: value.map((item, index) => toMessage(item, `${where}[${index}]`, depth + 1)) };
    }
    if (typeof value !== 'object' || value === null) return { kind: 'constant', value };
    const members = Object.entries(value).map(([name, member]): [string, Message] => [
      name,
      structural.has(name) ? { kind: 'constant', value: member } : toMessage(member, `${where}.${name}`, depth + 1),
    ]);
    return { kind: 'object', members };
  };
  const compiled = messages.map((message, index) => toMessage(message, `string[${index}]`, 0));
  return {
    operation: 'chat',
    partials: [...partials],
    render: (renderer) => compiled.map((message) => renderMessage(message, renderer)),
  };
}

function renderMessage(message: Message, renderer: Renderer): unknown {
  switch (message.kind) {
    case 'constant':
      return message.value;
    case 'text':
      return renderer.render(message.template);
    case 'list':
      return message.items.map((item) => renderMessage(item, renderer));
    case 'object':
      return Object.fromEntries(message.members.map(([name, member]) => [name, renderMessage(member, renderer)]));
  }
}

/** The endpoint that a prompt is for. A text that begins like a message list is one. */
export const operationOf = (text: string): PromptTemplate['operation'] =>
  /^\s*\[\s*\{(?!\{)/.test(text) ? 'chat' : 'completions';

/**
 * The messages of a JSON text; null for any other text. A text that looks like a list but is not valid is a mistake.
 */
function parseMessages(text: string): object[] | null {
  if (operationOf(text) === 'completions') return null;
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw refused(`it begins like a message list but is not valid JSON (${(error as Error).message})`);
  }
  const messages = value as unknown[];
  if (messages.length > messagesMax) throw refused(`it has more than ${messagesMax} messages`);
  for (const [index, message] of messages.entries()) {
    const role = typeof message === 'object' && message !== null && 'role' in message ? message.role : undefined;
    if (typeof role !== 'string') throw refused(`the message at [${index}] has no 'role'`);
  }
  return messages as object[];
}

const refused = (reason: string): GatewayError =>
  new GatewayError('invalid_request', 'invalid_template', `Invalid 'string': ${reason}.`, { param: 'string' });
