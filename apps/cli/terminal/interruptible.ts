import { CliError, exitCodes } from '../server/cli-error.ts';

/**
 * Runs work that Ctrl-C interrupts, and prints how to resume it. Work on the server continues. A second Ctrl-C ends the
 * process immediately.
 */
export async function interruptible<Result>(
  work: (signal: AbortSignal) => Promise<Result>,
  howToResume: () => string,
): Promise<Result> {
  const controller = new AbortController();
  const onSignal = (): void => {
    if (controller.signal.aborted) process.exit(exitCodes.detached);
    controller.abort(new Error('interrupted'));
  };
  process.on('SIGINT', onSignal).on('SIGTERM', onSignal);
  try {
    return await work(controller.signal);
  } catch (error) {
    if (!controller.signal.aborted) throw error;
    throw new CliError('Interrupted.', { hint: howToResume(), exitCode: exitCodes.detached });
  } finally {
    // After the first signal, the process is about to end. A second signal must not end it with another status.
    if (!controller.signal.aborted) process.off('SIGINT', onSignal).off('SIGTERM', onSignal);
  }
}
