import { CliError, exitCodes } from '../server/cli-error.ts';

/**
 * Runs work that Ctrl-C ends, and says then how to come back. What runs on the server goes on: nothing is cancelled. A
 * second Ctrl-C ends the process at once.
 */
export async function interruptible<Result>(
  work: (signal: AbortSignal) => Promise<Result>,
  howToComeBack: () => string,
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
    throw new CliError('Interrupted.', { hint: howToComeBack(), exitCode: exitCodes.detached });
  } finally {
    // After the first one the process is about to end, and the next must not end it with another status.
    if (!controller.signal.aborted) process.off('SIGINT', onSignal).off('SIGTERM', onSignal);
  }
}
