import type { PlanCall } from './plan.ts';

/**
 * The text by which the calls of one conversation are recognised, so that they go to the target whose prompt cache has
 * its beginning: the agent session, or else the `prompt_cache_key` of the body
 * (https://platform.openai.com/docs/api-reference/chat/create), or else the system prompt and the first message of the
 * user, if others follow. A body with a single message can be the same as that of many other calls, so it names no
 * conversation. null: there is none, as for a batch line, because all lines of a batch can have the same beginning.
 *
 * The body has been parsed for the config of the call. Only both ends of each text are read.
 */
export function findConversation({ session, params }: PlanCall): string | null {
  if (session === undefined) return null;
  if (session !== null) return `session ${session.sessionId}`;
  const { prompt_cache_key: key, messages, system } = params;
  if (typeof key === 'string' && key !== '') return `key ${shorten(key)}`;
  if (!Array.isArray(messages)) return null;
  const start = messages.slice(0, startMax) as unknown[];
  const user = start.findIndex((message) => roleOf(message) === 'user');
  if (user === -1 || messages.length <= user + 1) return null;
  const texts = start.slice(0, user + 1).map((message) => textOf(contentOf(message)));
  return `start ${JSON.stringify([textOf(system), ...texts])}`;
}

/** The first message of the user is among this many. */
const startMax = 20;
/** This many parts of a message are read. */
const partsMax = 20;
/** The characters that are read at each end of a text. */
const endChars = 512;

const roleOf = (message: unknown): unknown => (isObject(message) ? message['role'] : undefined);
const contentOf = (message: unknown): unknown => (isObject(message) ? message['content'] : undefined);

/** The text of a message or a system prompt, which is a text or a list of parts. Images and files are left out. */
function textOf(content: unknown): unknown {
  if (typeof content === 'string') return shorten(content);
  if (!Array.isArray(content)) return null;
  return content.slice(0, partsMax).map((part: unknown) => {
    const text = isObject(part) ? part['text'] : null;
    return typeof text === 'string' ? shorten(text) : null;
  });
}

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null;

const shorten = (text: string): string =>
  text.length <= 2 * endChars ? text : `${text.length} ${text.slice(0, endChars)}${text.slice(-endChars)}`;
