import { recordKinds } from '../records/record-kinds.ts';

/** The exit codes of client commands, which `sluice --help` explains. */
export const exitCodes = { failed: 1, usage: 2, failedLines: 3, notCompleted: 4, detached: 130 } as const;

/** A problem that is shown without a stack. `hint` says how to fix it. */
export class CliError extends Error {
  override readonly name = 'CliError';
  readonly hint: string | null;
  readonly exitCode: number;

  constructor(message: string, options: { hint?: string | null; exitCode?: number; cause?: unknown } = {}) {
    super(message, { cause: options.cause });
    this.hint = options.hint ?? null;
    this.exitCode = options.exitCode ?? exitCodes.failed;
  }
}

/** An error response of the server. */
export class ApiError extends CliError {
  readonly status: number;
  readonly code: string | null;
  readonly requestId: string | null;
  /** From `retry-after`; null without it. */
  readonly retryAfterMs: number | null;

  constructor(
    answer: { status: number; code: string | null; message: string; requestId: string | null; path: string },
    retryAfterMs: number | null = null,
  ) {
    super(answer.message, { hint: findHint(answer) });
    this.status = answer.status;
    this.code = answer.code;
    this.requestId = answer.requestId;
    this.retryAfterMs = retryAfterMs;
  }
}

/** The server did not answer at all. */
export class UnreachableError extends CliError {}

function findHint({ status, code, path }: { status: number; code: string | null; path: string }): string | null {
  if (code === 'unknown_url') return 'This may be an older release of Sluice, or another server. Run sluice doctor.';
  if (status === 401) return 'Run sluice login, or set SLUICE_API_KEY to a key of this server.';
  if (status === 403) return 'To see what your key can do, run sluice whoami. An admin can add scopes to it.';
  if (status === 404) {
    const list = findListCommand(path);
    return `${list === null ? '' : `To list all: ${list}\n`}A key only sees its own workspace. To see which, run sluice whoami.`;
  }
  if (status === 429) return 'Wait a moment and try again.';
  if (status >= 500) return 'Try again. For details, search the log of the server for this request ID.';
  return null;
}

/** The command that lists the records below a path of the server. */
function findListCommand(path: string): string | null {
  const [, lines] = /^(\/v1\/batches\/[^/]+)\/lines\//.exec(path) ?? [];
  if (lines !== undefined) return `sluice batch lines ${lines.slice('/v1/batches/'.length)}`;
  const lists = [
    ['/v1/batches', 'batch list'],
    ['/v1/files', 'files list'],
    ['/v1/events', 'events list'],
    ...recordKinds.map(({ path: of, command }) => [of, `${command} list`] as const),
    ['/v1/logs', 'logs search'],
  ] as const;
  const found = lists.find(([of]) => path.startsWith(`${of}/`));
  return found === undefined ? null : `sluice ${found[1]}`;
}

/** The lines that explain an error: the problem, how to find it in logs, and how to fix it. */
export function describeError(error: CliError): string[] {
  const facts =
    error instanceof ApiError
      ? [
          `HTTP ${error.status}`,
          ...(error.code === null ? [] : [`code ${error.code}`]),
          ...(error.requestId === null ? [] : [`request ${error.requestId}`]),
        ]
      : [];
  return [
    // Ctrl-C is not an error.
    error.exitCode === exitCodes.detached ? error.message : `error: ${error.message}`,
    ...(facts.length === 0 ? [] : [`  ${facts.join(', ')}`]),
    ...(error.hint === null ? [] : error.hint.split('\n').map((line) => `  ${line}`)),
  ];
}
