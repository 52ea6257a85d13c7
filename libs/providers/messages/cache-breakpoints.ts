import { memberValue } from '#libs/kernel/json/json-members.ts';
import type { Call } from '../provider.ts';
import { type Json, parseJson, toRecord } from '../turns/json-value.ts';
import type { TurnRequest } from '../turns/turn-request.ts';

/**
 * Claude caches a prompt up to its breakpoints (platform.claude.com/docs, "Prompt caching"), at most four: here after the tools,
 * after the system prompt, and after the last two turns of the user, so that the next turn of a conversation finds the
 * one before.
 */
const breakpoint = { cache_control: { type: 'ephemeral' } };
const turnsMax = 2;
const memberMark = Buffer.from('"cache_control"');
/** The largest body that is parsed for them. A larger one would block other calls. */
const ownBytesMax = 1_048_576;

/** Whether the config asks for breakpoints and the client has set none. The name in a text counts as a breakpoint. */
const lacksBreakpoints = ({ cacheBreakpoints, body }: Call): boolean =>
  cacheBreakpoints === true && !body.includes(memberMark);

/** The request with breakpoints, for a translation to Claude; the same object if it gets none. */
export function withBreakpoints(request: TurnRequest, call: Call): TurnRequest {
  if (!lacksBreakpoints(call)) return request;
  const { tools, system, messages } = request;
  const chosen = lastOfUser(messages.map(({ role }) => role !== 'assistant'));
  return {
    ...request,
    tools: tools.map((tool, index) => (index === tools.length - 1 ? marked(tool) : tool)),
    system: system.map((text, index) => (index === system.length - 1 ? marked(text) : text)),
    messages: messages.map((message, index) => (chosen.has(index) ? marked(message) : message)),
  };
}

const marked = <Item extends { raw: Json }>(item: Item): Item => ({ ...item, raw: { ...item.raw, ...breakpoint } });

/** The call with breakpoints in its body, which is in Anthropic's own format; the same object if it gets none. */
export function withOwnBreakpoints(call: Call): Call {
  if (call.operation !== 'messages' || call.body.length > ownBytesMax || !lacksBreakpoints(call)) return call;
  const read = (name: string): unknown => {
    const raw = name in call.edits ? call.edits[name] : memberValue(call.body, name)?.toString();
    return raw === undefined ? undefined : parseJson(raw);
  };
  const edits: Record<string, string> = {};
  const set = (name: string, value: unknown): void => void (edits[name] = JSON.stringify(value));
  const [tools, system, messages] = [read('tools'), read('system'), read('messages')];
  if (Array.isArray(tools) && tools.length > 0) set('tools', markLast(tools));
  if (isContent(system)) set('system', markLast(toBlocks(system)));
  if (Array.isArray(messages)) {
    const chosen = lastOfUser(messages.map((message) => toRecord(message)['role'] === 'user'));
    const mark = (message: unknown): unknown => {
      const { content, ...rest } = toRecord(message);
      return isContent(content) ? { ...rest, content: markLast(toBlocks(content)) } : message;
    };
    set(
      'messages',
      messages.map((message, index) => (chosen.has(index) ? mark(message) : message)),
    );
  }
  return { ...call, edits: { ...call.edits, ...edits } };
}

/** The places of the last turns of the user. */
const lastOfUser = (isUser: readonly boolean[]): ReadonlySet<number> =>
  new Set(isUser.flatMap((is, index) => (is ? [index] : [])).slice(-turnsMax));

const isContent = (content: unknown): content is string | unknown[] =>
  (typeof content === 'string' || Array.isArray(content)) && content.length > 0;

const toBlocks = (content: string | unknown[]): readonly unknown[] =>
  typeof content === 'string' ? [{ type: 'text', text: content }] : content;

const markLast = (items: readonly unknown[]): unknown[] =>
  items.map((item, index) => (index === items.length - 1 ? { ...toRecord(item), ...breakpoint } : item));
