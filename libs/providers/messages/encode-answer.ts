import { randomBytes } from 'node:crypto';
import { GatewayError } from '#libs/kernel/errors.ts';
import { claudeSigner } from '../anthropic/decode.ts';
import type { AnswerBlock, AnswerHead, CalledTool, Choice, FinishReason, TokenCounts } from '../turns/answer.ts';
import { type Json, parseJson, toRecord } from '../turns/json-value.ts';
import { wrapSignature } from '../turns/signatures.ts';

const stopReasons: Readonly<Record<FinishReason, string>> = {
  stop: 'end_turn',
  length: 'max_tokens',
  tool_calls: 'tool_use',
  content_filter: 'refusal',
};

/** Why the answer ended, as a message and the last events of a stream have it. */
export function encodeStop(reason: FinishReason, hasToolCalls: boolean, refusal: string): Json {
  // Some providers end an answer with calls like any other.
  const settled = reason === 'stop' || reason === 'tool_calls' ? (hasToolCalls ? 'tool_calls' : 'stop') : reason;
  const stopReason = refusal === '' ? stopReasons[settled] : 'refusal';
  const details = refusal === '' ? null : { type: 'refusal', category: null, explanation: refusal };
  return { stop_reason: stopReason, stop_sequence: null, stop_details: details };
}

/** Anthropic counts tokens that are read from the cache, or written to it, apart from other input. */
export function encodeUsage(counts: TokenCounts | null): Json {
  const { promptTokens = 0, completionTokens = 0, cachedTokens = 0, writtenTokens = 0 } = counts ?? {};
  const { reasoningTokens } = counts ?? {};
  return {
    input_tokens: Math.max(0, promptTokens - cachedTokens - writtenTokens),
    cache_creation_input_tokens: writtenTokens,
    cache_read_input_tokens: cachedTokens,
    output_tokens: completionTokens,
    ...(reasoningTokens === undefined ? {} : { output_tokens_details: { thinking_tokens: reasoningTokens } }),
  };
}

/** A message before it has content, the form in which a stream begins. */
export const encodeHead = ({ id, model }: AnswerHead): Json => ({
  id,
  type: 'message',
  role: 'assistant',
  model,
  content: [],
  stop_reason: null,
  stop_sequence: null,
  usage: encodeUsage(null),
});

/** The ID of a tool call, for a provider that sends none. */
export const callIdFor = (id: string): string => (id === '' ? `toolu_${randomBytes(12).toString('hex')}` : id);

/** An image in an answer, which Anthropic's models do not have, in the form in which it has images elsewhere. */
export function encodeImage(url: string): Json {
  const [, type = '', data = ''] = /^data:([^;,]*);base64,(.*)$/s.exec(url) ?? [];
  const source = data === '' ? { type: 'url', url } : { type: 'base64', media_type: type, data };
  return { type: 'image', source };
}

/**
 * A whole message (platform.claude.com/docs, "Messages"): text and reasoning in their order, then the tool calls. Throws
 * provider_failed if the arguments of a call are not a JSON object: an empty input would be another call.
 */
export function encodeMessage(head: AnswerHead, choices: readonly Choice[], usage: TokenCounts | null): Json {
  const { blocks = [], toolCalls = [], finishReason = 'stop', refusal } = choices[0] ?? {};
  return {
    ...encodeHead(head),
    content: [
      ...blocks.flatMap((block) => encodeBlock(block, head.signer)),
      ...toolCalls.map((call) => encodeCall(call, finishReason)),
    ],
    ...encodeStop(finishReason, toolCalls.length > 0, refusal ?? ''),
    usage: encodeUsage(usage),
  };
}

function encodeBlock(block: AnswerBlock, signer: string | undefined): Json[] {
  switch (block.type) {
    case 'text':
      return block.text === '' ? [] : [{ type: 'text', text: block.text }];
    case 'thinking': {
      const signature = wrapSignature(claudeSigner, signer, block.signature ?? '');
      return [{ type: 'thinking', thinking: block.thinking, signature }];
    }
    case 'redacted_thinking':
      return [{ type: 'redacted_thinking', data: wrapSignature(claudeSigner, signer, block.data) }];
    case 'image_url':
      return [encodeImage(block.image_url.url)];
  }
}

function encodeCall({ id, name, arguments: written }: CalledTool, finishReason: FinishReason): Json {
  const parsed = written.trim() === '' ? {} : parseJson(written);
  const isObject = typeof parsed === 'object' && parsed !== null && !Array.isArray(parsed);
  // An answer that became too long can end within the arguments. Its stop reason shows that.
  if (!isObject && finishReason !== 'length') {
    const problem = 'The provider called a tool with arguments that are not a JSON object.';
    throw new GatewayError('provider_failed', 'upstream_invalid_response', problem);
  }
  return { type: 'tool_use', id: callIdFor(id), name, input: toRecord(parsed) };
}
