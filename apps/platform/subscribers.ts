import { activitySubscriber } from '#libs/activity/activity-subscriber.ts';
import type { Subscriber } from '#libs/event-log/subscriber.ts';

/** Every subscriber of the event log; the workers run them. */
export const subscribers: readonly Subscriber[] = [activitySubscriber];
