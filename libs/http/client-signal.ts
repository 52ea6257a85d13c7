import type { ServerResponse } from 'node:http';

/**
 * A controller that aborts when the client disconnects before its answer is complete, so that calls made for it end and no
 * provider keeps working on them.
 */
export function abortWhenClientLeaves(response: ServerResponse): AbortController {
  const controller = new AbortController();
  const leave = (): void => {
    if (!response.writableFinished) controller.abort(new Error('the client left'));
  };
  if (response.destroyed) leave();
  else response.once('close', leave);
  return controller;
}
