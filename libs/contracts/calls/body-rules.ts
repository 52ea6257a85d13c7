import type { Breach } from './describe-issue.ts';

// The rules across fields of request bodies (CALL-2). They are separate from the schemas, so that the threads that check batch
// files by JSON Schema apply the same rules. Each function takes a body whose structure was already checked, and returns the
// first broken rule or null.

/**
 * The problem of a body in which an object has two members of the same name. Some readers use the first of them and
 * others the last, so a guardrail could check one while the provider uses the other.
 */
export const duplicateBreach = (path: PropertyKey[]): Breach => ({
  path,
  code: 'duplicate_member',
  text: (name) => `Duplicate key: ${name()} appears twice. Each key of an object must be unique.`,
});

type StreamFields = { stream?: boolean | null | undefined; stream_options?: unknown };

function streamOptionsBreach(body: StreamFields): Breach | null {
  if (body.stream_options === undefined || body.stream_options === null || body.stream === true) return null;
  return {
    path: ['stream_options'],
    code: 'invalid_value',
    text: (name) => `Invalid ${name()}: it is only allowed when ${name('stream')} is true.`,
  };
}

type ChatFields = StreamFields & {
  logprobs?: boolean | null | undefined;
  top_logprobs?: number | null | undefined;
  messages: readonly { content?: unknown }[];
};

/** `top_logprobs` needs `logprobs`, `stream_options` needs `stream`, and content parts of known types have their data. */
export function chatBreach(body: ChatFields): Breach | null {
  if (body.top_logprobs !== undefined && body.top_logprobs !== null && body.logprobs !== true) {
    return {
      path: ['top_logprobs'],
      code: 'invalid_value',
      text: (name) => `Invalid ${name()}: it is only allowed when ${name('logprobs')} is true.`,
    };
  }
  return streamOptionsBreach(body) ?? contentBreach(body.messages);
}

/** The member that a content part of a known type must have; the provider checks parts of other types. */
const memberOfPart = new Map<unknown, string>([
  ['text', 'text'],
  ['image_url', 'image_url'],
]);

function contentBreach(messages: ChatFields['messages']): Breach | null {
  for (const [index, { content }] of messages.entries()) {
    if (!Array.isArray(content)) continue;
    for (const [position, part] of (content as Record<string, unknown>[]).entries()) {
      const member = memberOfPart.get(part['type']);
      if (member === undefined || (part[member] !== undefined && part[member] !== null)) continue;
      return {
        path: ['messages', index, 'content', position, member],
        code: 'missing_required_parameter',
        text: (name) => `Missing required parameter: ${name()}.`,
      };
    }
  }
  return null;
}

type CompletionFields = StreamFields & { best_of?: number | null | undefined; n?: number | null | undefined };

/** `best_of` is greater than `n` when both are given, more than one candidate cannot be streamed, and the stream rule. */
export function completionBreach(body: CompletionFields): Breach | null {
  const { best_of: bestOf, n } = body;
  if (typeof bestOf === 'number') {
    if (typeof n === 'number' && bestOf <= n) {
      return {
        path: ['best_of'],
        code: 'invalid_value',
        text: (name) =>
          `Invalid ${name()}: expected a value greater than ${name('n')} (${n}), but got ${bestOf} instead.`,
      };
    }
    if (bestOf > 1 && body.stream === true) {
      return {
        path: ['best_of'],
        code: 'invalid_value',
        text: (name) =>
          `Invalid ${name()}: results cannot be streamed when it is above 1. Leave out ${name('stream')}.`,
      };
    }
  }
  return streamOptionsBreach(body);
}
