/** The agent session of a call, as its client names it. */
export type AgentSession = {
  readonly sessionId: string;
  /** The sub-agent that makes the call; null for the main agent. */
  readonly agentId: string | null;
  /** The agent that started the sub-agent. */
  readonly parentAgentId: string | null;
};

type Headers = Readonly<Record<string, string | readonly string[] | undefined>>;

/**
 * The headers of each kind of client, in the order in which they are tried: our own, those of Claude Code
 * (https://code.claude.com/docs/en/llm-gateway-protocol#request-headers), and those of Codex, whose older versions send
 * `session_id` and `conversation_id` (`codex-rs/codex-api/src/requests/headers.rs` of https://github.com/openai/codex).
 * Gemini CLI sends none, except those in `GEMINI_CLI_CUSTOM_HEADERS`.
 */
const clients: readonly { session: readonly string[]; agent: readonly string[]; parent: readonly string[] }[] = [
  {
    session: ['x-gateway-session-id', 'x-portkey-session-id'],
    agent: ['x-gateway-agent-id', 'x-portkey-agent-id'],
    parent: ['x-gateway-parent-agent-id', 'x-portkey-parent-agent-id'],
  },
  {
    session: ['x-claude-code-session-id'],
    agent: ['x-claude-code-agent-id'],
    parent: ['x-claude-code-parent-agent-id'],
  },
  {
    session: ['session-id', 'session_id', 'conversation_id'],
    agent: ['thread-id'],
    parent: ['x-codex-parent-thread-id'],
  },
];

/**
 * Reads the agent session of a call from its headers, whose names are in lower case. An ID is 1 to 128 printable ASCII
 * characters; any other value is ignored. null: the headers name no session.
 */
export function readAgentSession(headers: Headers): AgentSession | null {
  for (const { session, agent, parent } of clients) {
    const sessionId = findId(headers, session);
    if (sessionId === null) continue;
    const agentId = findId(headers, agent);
    // The main thread of a Codex session has the ID of the session.
    const isMain = agentId === null || agentId === sessionId;
    return { sessionId, agentId: isMain ? null : agentId, parentAgentId: isMain ? null : findId(headers, parent) };
  }
  return null;
}

const idShape = /^[\x20-\x7e]{1,128}$/;

function findId(headers: Headers, names: readonly string[]): string | null {
  for (const name of names) {
    const value = headers[name];
    if (typeof value === 'string' && idShape.test(value)) return value;
  }
  return null;
}
