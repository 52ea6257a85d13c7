import { refuse, signatureOf, type Turn } from '#apps/simulator/wire/anthropic/turns.ts';
import type { MessagesRequest } from './anthropic-schema.ts';

/** The rules that a schema cannot express: the first role, tool results right after their tools, thoughts unaltered. */
export function checkTurns(turns: readonly Turn[], thinking: MessagesRequest['thinking']): void {
  if (turns[0]?.role !== 'user') refuse('messages: first message must use the "user" role');
  const seen = new Set<string>();
  for (const [at, turn] of turns.entries()) {
    if (turn.role === 'assistant') checkAssistant(turn, seen);
    else checkUser(turn, at === 0 ? undefined : turns[at - 1]);
  }
  const last = turns.at(-1);
  const open = last?.role === 'assistant' ? toolIds(last) : [];
  if (last !== undefined && open.length > 0) unanswered(last.index, open);
  if (thinking?.type === 'enabled') checkToolLoop(turns);
}

function checkAssistant({ content, index }: Turn, seen: Set<string>): void {
  for (const [at, block] of content.entries()) {
    if (block.type === 'tool_use') {
      if (seen.has(block.id)) refuse(`messages.${index}.content.${at}: \`tool_use\` ids must be unique`);
      seen.add(block.id);
    }
    if (block.type === 'tool_result') {
      refuse(`messages.${index}.content.${at}: \`tool_result\` blocks can only be in \`user\` messages`);
    }
    if (block.type === 'thinking' && block.signature !== signatureOf(block.thinking)) {
      refuse(`messages.${index}.content.${at}: Invalid \`signature\` in \`thinking\` block`);
    }
  }
}

function checkUser({ content, index }: Turn, before: Turn | undefined): void {
  const asked = before === undefined ? [] : toolIds(before);
  const answered = new Set<string>();
  let othersBegan = false;
  for (const [at, block] of content.entries()) {
    if (block.type === 'tool_use' || block.type === 'thinking' || block.type === 'redacted_thinking') {
      refuse(`messages.${index}.content.${at}: \`${block.type}\` blocks can only be in \`assistant\` messages`);
    }
    if (block.type !== 'tool_result') {
      othersBegan = true;
      continue;
    }
    const id = block.tool_use_id;
    if (!asked.includes(id)) {
      refuse(
        `messages.${index}.content.${at}: unexpected \`tool_use_id\` found in \`tool_result\` blocks: ${id}. Each \`tool_result\` block must have a corresponding \`tool_use\` block in the previous message.`,
      );
    }
    if (answered.has(id)) {
      refuse(
        `messages.${index}.content.${at}: each tool_use must have a single result. Found multiple \`tool_result\` blocks with id: ${id}`,
      );
    }
    if (!othersBegan) answered.add(id); // a result behind other content is not "immediately after"
  }
  const open = asked.filter((id) => !answered.has(id));
  if (open.length > 0) unanswered(index - 1, open);
}

/** With thinking on, the assistant's turn that called the tools must begin with its thoughts. */
function checkToolLoop(turns: readonly Turn[]): void {
  const results = turns.at(-1)?.content.some(({ type }) => type === 'tool_result') === true;
  const called = results ? turns.at(-2) : undefined;
  const first = called?.content[0]?.type;
  if (called === undefined || first === 'thinking' || first === 'redacted_thinking') return;
  refuse(
    `messages.${called.index}.content.0.type: Expected \`thinking\` or \`redacted_thinking\`, but found \`${first}\`. When \`thinking\` is enabled, a final \`assistant\` message must start with a thinking block (preceeding the lastmost set of \`tool_use\` and \`tool_result\` blocks).`,
  );
}

function toolIds({ content }: Turn): string[] {
  return content.flatMap((block) => (block.type === 'tool_use' ? [block.id] : []));
}

function unanswered(index: number, ids: readonly string[]): never {
  return refuse(
    `messages.${index}: \`tool_use\` ids were found without \`tool_result\` blocks immediately after: ${ids.join(', ')}. Each \`tool_use\` block must have a corresponding \`tool_result\` block in the next message.`,
  );
}
