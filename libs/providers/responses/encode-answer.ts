import type { Call } from '../provider.ts';
import type { AnswerHead, CalledTool, Choice, FinishReason, TokenCounts } from '../turns/answer.ts';
import { type Json, asText, toRecord } from '../turns/json-value.ts';
import { encodeReasoning, newId } from './reasoning.ts';
import { readTools, unwrapInput, type Tools } from './tool-names.ts';

/** Longer instructions and tools are not repeated in the answer, which no client reads. */
const repeatedCharsMax = 16_384;

/** The members of a response that repeat the request (platform.openai.com/docs/api-reference/responses/object). */
function repeatRequest(body: Json): Json {
  const { instructions, tools } = body;
  const isShort = JSON.stringify([instructions, tools]).length <= repeatedCharsMax;
  const repeated = {
    max_output_tokens: null,
    metadata: {},
    parallel_tool_calls: true,
    reasoning: { effort: null, summary: null },
    temperature: null,
    text: { format: { type: 'text' } },
    tool_choice: 'auto',
    top_p: null,
    user: null,
  };
  return {
    ...Object.fromEntries(Object.entries(repeated).map(([name, value]) => [name, body[name] ?? value])),
    instructions: isShort ? (instructions ?? null) : null,
    tools: isShort ? (tools ?? []) : [],
  };
}

/** A response before it has content. Nothing is stored, so `store` is false. */
export const encodeHead = (head: AnswerHead, body: Json): Json => ({
  id: newId('resp'),
  object: 'response',
  created_at: head.created ?? Math.floor(Date.now() / 1_000),
  status: 'in_progress',
  background: false,
  error: null,
  incomplete_details: null,
  previous_response_id: null,
  service_tier: 'default',
  store: false,
  truncation: 'disabled',
  ...repeatRequest(body),
  model: head.model,
  output: [],
  usage: null,
});

const incomplete: Readonly<Partial<Record<FinishReason, string>>> = {
  length: 'max_output_tokens',
  content_filter: 'content_filter',
};

/** How an answer ended, as the members of its response. A refusal is a complete answer. */
export function encodeStatus(reason: FinishReason, hasRefusal: boolean): Json {
  const cut = hasRefusal ? undefined : incomplete[reason];
  return {
    status: cut === undefined ? 'completed' : 'incomplete',
    incomplete_details: cut === undefined ? null : { reason: cut },
  };
}

export const encodeUsage = (counts: TokenCounts | null): Json | null =>
  counts === null
    ? null
    : {
        input_tokens: counts.promptTokens,
        input_tokens_details: { cached_tokens: counts.cachedTokens ?? 0 },
        output_tokens: counts.completionTokens,
        output_tokens_details: { reasoning_tokens: counts.reasoningTokens ?? 0 },
        total_tokens: counts.promptTokens + counts.completionTokens,
      };

export const textPart = (text: string): Json => ({ type: 'output_text', annotations: [], logprobs: [], text });
export const refusalPart = (refusal: string): Json => ({ type: 'refusal', refusal });

export const encodeSaid = (id: string, status: string, content: readonly Json[]): Json => ({
  id,
  type: 'message',
  status,
  role: 'assistant',
  content,
});

/** An image in an answer, in the form in which OpenAI's tool returns images. */
export const encodeImage = (url: string): Json => ({
  id: newId('ig'),
  type: 'image_generation_call',
  status: 'completed',
  result: /^data:[^,]*;base64,(.*)$/s.exec(url)?.[1] ?? url,
});

/** A call by the names that the client has for the tool. `status`: of its item. */
export function encodeCall(tools: Tools, { id, name: flat, arguments: written }: CalledTool, status: string): Json {
  const { name, namespace, isCustom } = tools.find(flat);
  const call = { status, call_id: id === '' ? newId('call') : id, name, ...(namespace === null ? {} : { namespace }) };
  return isCustom
    ? { id: newId('ctc'), type: 'custom_tool_call', ...call, input: unwrapInput(written) }
    : { id: newId('fc'), type: 'function_call', ...call, arguments: written };
}

/** A whole response: text and reasoning in their order, then the refusal and the calls. */
export function encodeResponse(
  head: AnswerHead,
  choices: readonly Choice[],
  usage: TokenCounts | null,
  call: Call,
): Json {
  const body = call.json();
  const { blocks = [], toolCalls = [], finishReason = 'stop', refusal } = choices[0] ?? {};
  const ending = encodeStatus(finishReason, Boolean(refusal));
  const status = asText(ending['status']) ?? '';
  const output: Json[] = [];
  let content: Json[] | null = null;
  const say = (part: Json): void => {
    if (content === null) output.push(encodeSaid(newId('msg'), status, (content = [])));
    content.push(part);
  };
  for (const block of blocks) {
    if (block.type === 'text') {
      if (block.text !== '') say(textPart(block.text));
      continue;
    }
    content = null;
    output.push(
      block.type === 'image_url'
        ? encodeImage(block.image_url.url)
        : encodeReasoning(newId('rs'), head.signer, toRecord(block)),
    );
  }
  if (refusal) say(refusalPart(refusal));
  const tools = readTools(body);
  output.push(...toolCalls.map((called) => encodeCall(tools, called, status)));
  return { ...encodeHead(head, body), ...ending, output, usage: encodeUsage(usage) };
}
