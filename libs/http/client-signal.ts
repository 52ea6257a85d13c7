import type { ServerResponse } from 'node:http';
import { CallAbort } from '#libs/kernel/call-signal.ts';

/**
 * A controller that aborts when the client disconnects before its answer is complete, so that the work for it ends.
 */
export const abortWhenClientLeaves = (response: ServerResponse): AbortController =>
  followClient(response, new AbortController());

/** The same for a call to a provider, which must not keep working for a client that has left. */
export const abortCallWhenClientLeaves = (response: ServerResponse): CallAbort =>
  followClient(response, new CallAbort());

function followClient<Controller extends { abort: (reason: Error) => void }>(
  response: ServerResponse,
  controller: Controller,
): Controller {
  const leave = (): void => {
    if (!response.writableFinished) controller.abort(new Error('the client left'));
  };
  if (response.destroyed) leave();
  else response.on('close', leave);
  return controller;
}
